"""An engine: ipyparallel's program with a kernel that makes plain %%px cells safe.

    python -m tutorial_dl.cluster engine --mpi --profile-dir=FOLDER ...

A cell that fails on one rank notifies the ranks of its teams, which then raise PeerError where they
wait (numba_kernels: team/failure.py, team/mailbox.py). Cells that were sent before the notebook
reported a failure are dropped. The engine's control thread says what its main thread does.

ipyparallel has no option for the classes of its kernel and its heart, so `main` puts ours in their
places.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import zmq
from ipykernel.compiler import XCachingCompiler
from ipykernel.zmqshell import ZMQInteractiveShell
from ipyparallel.engine import app
from ipyparallel.engine.kernel import IPythonParallelKernel
from traitlets import Type

from numba_kernels.errors import message_of
from numba_kernels.shared.segments import unlink_segments

from ..tensorflow_chatter import hide_tensorflow_chatter
from .batch_job import OF_A_JOB
from .engine_main_thread import MainThread, Shares
from .protocol import ABOUT, QUESTION, WRITE, About, Severity, pipe, position_file

ENDING = 2  # seconds that SIGTERM leaves an idle engine in a batch job
SHOWN = 20  # calls at the beginning of a long traceback, and as many at its end
# After 2 s without a heartbeat, the kernel of this node asks the controller's each second whether
# the connection still stands; if it does not, the engine connects again (controller.py).
KEEPALIVE = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 2,
    zmq.TCP_KEEPALIVE_INTVL: 1,
    zmq.TCP_KEEPALIVE_CNT: 30,  # questions; the controller gives the engine up then
}


class Heart(app.Heart):
    """Receives heartbeats and answers them, in a thread without Python's lock."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        for option, value in KEEPALIVE.items():
            self.device.setsockopt_in(option, value)


class Compiler(XCachingCompiler):
    """Names cells by the notebook's numbers, because each engine counts its own.

    `number` is that of the running cell. `labels` are names, such as "In[12]", of the notebook's
    own cells, by file.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.number: int | None = None
        self.labels: dict[str, str] = {}

    def cache(self, transformed_code, number=0, raw_code=None) -> str:
        return super().cache(transformed_code, self.number or number, raw_code)

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        if name in self.labels:
            return "Cell", self.labels[name]
        return super().format_code_name(name)


class Shell(ZMQInteractiveShell):
    """Its errors have a message, which IPython's history and ipykernel's reply ask for."""

    async def run_code(self, code_obj, result=None, *, async_=False):
        failed = await super().run_code(code_obj, result, async_=async_)
        if result is not None and result.error_in_exec is not None:
            result.error_in_exec = sayable(result.error_in_exec)
        return failed


class Ending:
    """Decides what SIGTERM does to this engine; nothing changes outside a batch job.

    The last thing that an engine does is to wait in MPI_Finalize for all ranks and for the
    launcher. But when a job is cancelled, the launcher ends first, so engines would wait until the
    batch system kills them. So an idle engine ends in order, which closes what Python keeps open,
    but is ended if that takes long. One that runs a cell, perhaps in a call that nothing can
    interrupt, ends at once, as programs do by default.
    """

    def __init__(self) -> None:
        self._in_job = any(map(OF_A_JOB.fullmatch, os.environ))
        self._in_order = signal.getsignal(signal.SIGTERM)  # ipyparallel's handler
        unlink_segments()
        self.idle()

    def idle(self) -> None:
        if self._in_job:
            signal.signal(signal.SIGTERM, self._leave)

    def busy(self) -> None:
        if self._in_job:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _leave(self, number: int, frame: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process wherever it is
        signal.alarm(ENDING)
        if callable(self._in_order):
            self._in_order(number, frame)
        else:
            sys.exit(128 + number)


class Kernel(IPythonParallelKernel):
    """The kernel of an engine."""

    compiler_class, shell_class = Type(Compiler), Type(Shell)
    # ipykernel 7 would ask a thread of the shell channel which thread runs cells, to await in them.
    # Engines have no such thread; `do_execute` sets what ipykernel reads of it.
    _supports_kernel_subshells = False

    def __init__(self, **kwargs):
        from numba_kernels.team import activity  # on the engine only, because it starts MPI

        super().__init__(**kwargs)
        self.shares = Shares(activity.kind, activity.calls, activity.KINDS)
        names = self.shell.compile.format_code_name
        self.main_thread = MainThread(self.shares, lambda file: names(file) is not None)
        self.running = False
        self.error: BaseException | None = None  # of the cell whose reply has not been sent yet
        self.failures: dict[str, int] = {}  # by session of a client: its last cell that failed here

    def start(self):
        """Begin to take messages; collective."""
        self.ending = Ending()
        self.files = prepare(self.parent.profile_dir.location)
        events = self.shell.events
        events.register("pre_execute", self.begin)  # also for code that is run silently
        events.register("post_execute", self.end)
        events.register("pre_run_cell", self.before_cell)
        events.register("post_run_cell", self.after_cell)
        self.shell.set_custom_exc((BaseException,), self.raised)
        # exit() and quit() would end the engine; and IPython advises to use them
        self.shell.ask_exit = sys.exit
        warnings.filterwarnings("ignore", "To exit: use 'exit'")
        self.control_handlers[QUESTION] = self.answer
        return super().start()

    def begin(self) -> None:
        self.running = True
        self.shares.begin()
        self.ending.busy()

    def end(self) -> None:
        self.running = False
        self.shares.end()
        self.ending.idle()

    def before_cell(self, info) -> None:
        from numba_kernels.team import failure, stall

        about = about_cell(self.get_parent("shell"))
        self.shell.compile.number = about.number
        stall.reports = not about.shows
        failure.new_cell(about.cell or None)

    def after_cell(self, result) -> None:
        """IPython's event; `raised` has seen most errors, but not those of syntax, for example."""
        if result is None:
            self.failed(RuntimeError("the cell was cancelled"))  # an `await` was
        error = result and (result.error_before_exec or result.error_in_exec)
        if error is not None and self.error is None:
            self.failed(error)

    def raised(self, shell, kind, error, trace, tb_offset=None) -> None:
        """IPython's exception handler."""
        self.failed(error)  # first: a traceback may take a second if many ranks share few cores
        if isinstance(error, KeyboardInterrupt):  # the client reports it in one line
            error._render_traceback_ = list
        shorten(error)
        said = sayable(error)
        shell.showtraceback((type(said), said, trace), running_compiled_code=True)

    def failed(self, error: BaseException) -> None:
        """Make the ranks of all teams of this process raise PeerError, once per error."""
        from numba_kernels.team import failure

        if error is not self.error:
            self.error = error
            failure.abort_all(error)

    def finish_metadata(self, parent, metadata, reply_content):
        """Add the severity of a cell's failure to its reply."""
        metadata = super().finish_metadata(parent, metadata, reply_content)
        error, self.error = self.error, None
        if reply_content["status"] == "error":
            if number := about_cell(parent).cell:
                self.failures[parent["header"]["session"]] = number
            if error is not None:  # ipyparallel's client keeps `engine_info`, not other metadata
                reply_content["engine_info"]["severity"] = severity(error)
        return metadata

    def should_handle(self, stream, msg, idents):
        """Drop a cell that was sent before the failure of another one was reported.

        A cell that is sent after the report runs, however soon it comes.
        """
        failed = self.failures.get(msg["header"]["session"], 0)
        if failed > about_cell(msg).reported:
            self.aborted.add(msg["header"]["msg_id"])
        return super().should_handle(stream, msg, idents)

    async def do_execute(self, *args, **kwargs):
        self.shell_channel_thread = SimpleNamespace(parent_thread=threading.main_thread())
        try:
            return await super().do_execute(*args, **kwargs)
        finally:
            self.shell_channel_thread = None

    def answer(self, stream, identity, question) -> None:
        """Called in the control thread."""
        running = self.running or self.shell_is_blocking  # the latter in ipyparallel's apply
        content = self.main_thread.doing(running)._asdict()
        self.session.send(stream, "doing_reply", content, question, ident=identity)

    def publish(self, kind: str, buffers: list) -> None:
        """Send buffers to the client whose cell runs."""
        parent = self.get_parent("shell")
        self.session.send(self.iopub_socket, kind, {}, parent, buffers=buffers,
                          ident=self._topic(kind))  # fmt: skip


def about_cell(request) -> About:
    """What is known of a cell; of others' requests, that they are new."""
    sent = request.get("metadata", {}).get(ABOUT)
    return About(*sent) if sent else About(0, time.time_ns(), False, None)


def shorten(error: BaseException) -> None:
    """Cut the middle out of long tracebacks: IPython needs 20 ms for each line of one."""
    seen: set[int] = set()  # causes may go round in a circle
    chained: BaseException | None = error
    while chained is not None and id(chained) not in seen:
        seen.add(id(chained))
        steps, step = [], chained.__traceback__
        while step is not None:
            steps.append(step)
            step = step.tb_next
        if (left_out := len(steps) - 2 * SHOWN) > 0:
            steps[SHOWN - 1].tb_next = steps[-SHOWN]
            chained.add_note(f"({left_out} more calls, between these, are not shown)")
        chained = chained.__cause__ or chained.__context__


def sayable(error: BaseException) -> BaseException:
    """Return `error`, or one of the same name that says why its message can't be made."""
    try:
        str(error)
    except Exception:
        return type(type(error).__name__, (Exception,), {})(message_of(error))
    return error


def severity(error: BaseException) -> Severity:
    from numba_kernels.errors import PeerError, TeamError

    from ..replica.keras.collective_layers import cause

    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return Severity.INTERRUPTED
    before: BaseException | None = cause(error)
    while before is not None:
        # A team that has failed refuses calls with a plain TeamError.
        if isinstance(before, PeerError) or type(before) is TeamError:
            return Severity.CAUSED
        before = before.__cause__ or before.__context__
    return Severity.OWN


def prepare(folder: str) -> list:
    """Prepare this process for cells; collective. Returns what must stay open while it lives."""
    from mpi4py import MPI

    from numba_kernels.team.world import world_of

    rank, opened = MPI.COMM_WORLD.rank, []
    text_bars()
    hide_tensorflow_chatter()  # of cells that import Keras first
    with contextlib.suppress(OSError):  # the folder is not on this node
        with contextlib.suppress(FileExistsError):
            os.mkfifo(pipe(folder, rank), 0o600)
        # For reading, too: the client opens it later.
        opened.append(os.open(pipe(folder, rank), os.O_RDWR))
    with contextlib.suppress(OSError):
        # Stays open while the engine lives; readable by its owner only, whatever the umask is.
        owners = os.open(position_file(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        opened.append(os.fdopen(owners, "wb", buffering=0))
        faulthandler.register(WRITE, opened[-1], all_threads=False)
    world_of(MPI.COMM_WORLD)  # so that a rank that waits while the first team is made sees failures
    MPI.COMM_WORLD.allreduce(0)  # the first call holds the GIL: see KEEPS_GIL in client.py
    return opened


def text_bars() -> None:
    """Let bars of `tqdm.auto` be text in the rank's output.

    tqdm takes an engine for a notebook, and makes a widget, which does not reach the notebook's
    page, or warns that there are none.
    """
    from tqdm import std

    class tqdm(std.tqdm):
        def __init__(self, *args, **options):
            if len(args) < 5:  # the fifth is `file`
                options.setdefault("file", sys.stdout)
            super().__init__(*args, **options)

    name = "tqdm.autonotebook"  # which tqdm.auto imports
    module = sys.modules[name] = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.tqdm, module.trange = tqdm, lambda *args, **options: tqdm(range(*args), **options)


def main() -> None:
    app.Kernel, app.Heart = Kernel, Heart
    app.main()
