"""Runs on every engine: hooks around its cells, and an answer to "what are you doing?".

The hooks make plain %%px cells safe: a cell that fails on one rank notifies the ranks of its teams,
which then raise PeerError where they wait (numba_kernels: team/failure.py, team/mailbox.py).

The answer comes from the engine's control thread, also while the main thread is in a blocking MPI
call, where mpi4py releases the GIL. An engine whose main thread holds the GIL inside compiled code
can't answer; it is sent a signal at which faulthandler, which is written in C, writes its current
line of Python to a file.
"""

import ast
import asyncio
import contextlib
import ctypes
import faulthandler
import inspect
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import NamedTuple

import psutil

from ..tensorflow_chatter import hide_tensorflow_chatter
from .engine_activity import Shares, waits
from .engine_end import Ending
from .process_watch import pipe
from .text_bars import text_bars

QUESTION = "doing_request"
# Keys in the metadata of an execute request: the cell's number, and that of the last cell whose end
# the notebook had reported when it sent this one.
CELL, REPORTED = "tutorial_dl_cell", "tutorial_dl_reported"
STATUS = "tutorial_dl_status"  # whether the notebook shows what ranks wait in
NUMBER = "tutorial_dl_number"  # that of the notebook's cell, as in "In[12]"; None in a script
LONGEST = 60  # characters of an expression to show
WRITE = getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 7) + 7  # makes an engine write its position


class Severity(IntEnum):
    """A failure's priority as the root cause of those on all ranks."""

    CAUSED = 0  # by another rank's failure
    INTERRUPTED = 1
    OWN = 2


class Doing(NamedTuple):
    """What an engine is doing.

    `silent`: the seconds for which no Python code is known to have run in the main thread (0 at the
    first question). Signal handlers are Python code, too, so a main thread that is silent in a call
    of mpi4py can't be interrupted.
    """

    state: str  # "idle" or "running"
    call: str  # the source of the expression in the cell, such as "comm.allreduce(x)", or ""
    line: int  # its line in the running cell, from 1; 0 if unknown
    mpi: bool  # whether the main thread is in a method of mpi4py
    silent: float
    memory: int  # resident bytes
    processor: float  # cores used since the last question, in percent of one
    waits: str = ""  # the call of a team that it waits in, such as "barrier"; "" if in none
    waited: float = 0.0  # seconds for which it has waited in that call
    number: int = 0  # that of the call among the calls of its team
    team: Sequence[int] = ()  # the ranks of that team, numbered as %%px does
    missing: Sequence[int] | None = None  # those that it waits for; None: it does not know
    shares: Sequence[float] = ()  # seconds computing, talking and waiting: engine_activity.py
    talks: bool = False  # whether this cell has called a team

    @property
    def blocked(self) -> float:
        """Seconds for which it has been in an MPI call that can't be interrupted."""
        return self.silent if self.mpi else 0.0

    def meeting(self) -> tuple:
        """Equal for ranks that wait in the same call of the same team."""
        return self.waits, self.number, tuple(self.team)

    def where(self) -> str:
        return f"{self.call or 'its cell'}{f' (line {self.line})' if self.line else ''}"


class Hooks:
    """Hooks in an engine: IPython's events around a cell, and the control channel's question."""

    def __init__(self, kernel):
        from numba_kernels.team import activity  # on the engine only, because it starts MPI

        self.kernel, self.shell = kernel, kernel.shell
        self.shares = Shares(activity.kind, activity.calls, activity.KINDS)
        self.process = psutil.Process()
        self.process.cpu_percent()  # starts the measurement
        self.unanswered: set[int] = set()
        self.asked = 0.0
        self.running = False
        self.error: BaseException | None = None  # of the cell whose reply has not been sent yet
        self.shell.events.register("pre_execute", self.begin)  # also for code that is run silently
        self.shell.events.register("post_execute", self.end)
        self.shell.events.register("pre_run_cell", self.before_cell)
        self.shell.events.register("post_run_cell", self.after_cell)
        self.shell.set_custom_exc((BaseException,), self.raised)
        kernel.control_handlers[QUESTION] = self.answer
        kernel.finish_metadata = self.finish_reply
        kernel.should_handle = self.should_handle
        let_cells_await(kernel)
        self.number: int | None = None
        self.cache = self.shell.compile.cache
        self.shell.compile.cache = self.cache_cell
        self.ending = Ending()
        self.failures: dict[str, int] = {}  # by session of a client: its last cell that failed here

    def begin(self) -> None:
        self.running = True
        self.shares.begin()
        self.ending.busy()

    def end(self) -> None:
        self.running = False
        self.shares.end()
        self.ending.idle()

    def before_cell(self, info) -> None:
        from numba_kernels.team import failure, stall  # on the engine only: it starts MPI

        request = self.kernel.get_parent("shell")
        metadata = request.get("metadata", {})
        self.number = metadata.get(NUMBER)
        stall.reports = not metadata.get(STATUS, False)
        failure.new_cell(metadata.get(CELL))

    def cache_cell(self, code: str, number: int = 0, raw_code: str | None = None) -> str:
        """The compiler's `cache`, with the notebook's number; each engine counts its own cells."""
        return self.cache(code, self.number or number, raw_code)

    def after_cell(self, result) -> None:
        if result is None:  # an `await` was cancelled
            error = RuntimeError("the cell was cancelled")
        else:
            error = result.error_before_exec or result.error_in_exec
        if error is not None:
            self.failed(error)

    def raised(self, shell, kind, error, trace, tb_offset=None) -> None:
        """IPython's exception handler."""
        self.failed(error)  # first: a traceback may take a second if many ranks share few cores
        if isinstance(error, KeyboardInterrupt):  # the client reports it in one line
            shell._last_traceback = []  # from where ipykernel takes it
        else:
            shell.showtraceback(running_compiled_code=True)

    def failed(self, error: BaseException) -> None:
        """Make the ranks of all teams of this process raise PeerError; once per error."""
        from numba_kernels.team import failure

        self.error = error
        failure.abort_all(error)

    def finish_reply(self, request, metadata: dict, reply: dict) -> dict:
        """ipykernel's `finish_metadata`; adds the severity of a cell's failure to the reply."""
        metadata = type(self.kernel).finish_metadata(self.kernel, request, metadata, reply)
        error, self.error = self.error, None
        if reply["status"] == "error" and CELL in request["metadata"]:
            self.failures[request["header"]["session"]] = request["metadata"][CELL]
        if error is not None and reply["status"] == "error":
            # ipyparallel's client keeps `engine_info`, and drops unknown metadata.
            reply["engine_info"]["severity"] = severity(error)
        return metadata

    def should_handle(self, stream, request, identities) -> bool:
        """ipykernel's `should_handle`: not a cell sent before the failure of another was reported.

        A cell that is sent after the report runs, however soon it comes.
        """
        header, about = request["header"], request["metadata"]
        if self.failures.get(header["session"], 0) > about.get(REPORTED, time.time_ns()):
            self.kernel.aborted.add(header["msg_id"])
        return type(self.kernel).should_handle(self.kernel, stream, request, identities)

    def answer(self, stream, identity, question) -> None:
        """Called in the control thread."""
        try:
            content = self.doing()._asdict()
        except Exception:  # the main thread has changed what is looked at; the next answer is right
            content = Doing("running", "", 0, False, 0.0, 0, 0.0)._asdict()
        self.kernel.session.send(stream, "doing_reply", content, question, ident=identity)

    def doing(self) -> Doing:
        at = "idle", "", 0, False
        if self.running or self.kernel.shell_is_blocking:  # the latter in ipyparallel's apply
            innermost = sys._current_frames()[threading.main_thread().ident]
            at = "running", *self.call_of_cell(innermost), calls_mpi(innermost)
        used = self.process.memory_info().rss, self.process.cpu_percent()
        more = waits() | self.shares.asked() if at[0] == "running" else {}
        return Doing(*at, self.silent(), *used, **more)

    def silent(self) -> float:
        """Seconds for which the main thread is known to have run no Python code."""
        now = time.monotonic()
        if not self.unanswered:
            # Python calls PySet_Clear(unanswered) before it next runs Python code in the main
            # thread. It is a C function, so that Ctrl-C can't interrupt it.
            self.unanswered.add(1)
            self.asked = now
            python = ctypes.pythonapi
            clear = ctypes.cast(python.PySet_Clear, ctypes.c_void_p)
            python.Py_AddPendingCall(clear, ctypes.py_object(self.unanswered))
        return now - self.asked

    def call_of_cell(self, frame: FrameType | None) -> tuple[str, int]:
        """The innermost expression in the source of a cell, and the line of the running cell."""
        call, line = "", 0
        while frame is not None:
            if self.shell.compile.format_code_name(frame.f_code.co_filename) is not None:
                call = call or expression(frame)
                line = frame.f_lineno or 0  # the outermost counts: functions may be older
            frame = frame.f_back
        return call if len(call) <= LONGEST else call[: LONGEST - 3] + "...", line


def let_cells_await(kernel) -> None:
    """Let cells with `await` at the top level run; else they would never end.

    For these, ipykernel 7 asks its thread of the shell channel which thread runs cells. Engines
    have no such thread, and the error goes to a log instead of a reply.
    """
    if getattr(kernel, "shell_channel_thread", True) is None:
        type(kernel)._supports_kernel_subshells = False  # as before; it looks for the thread
        kernel.shell_channel_thread = SimpleNamespace(parent_thread=threading.main_thread())


def severity(error: BaseException) -> Severity:
    from numba_kernels.errors import PeerError, TeamError

    from ..replica.collective_layers import cause

    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return Severity.INTERRUPTED
    before: BaseException | None = cause(error)
    while before is not None:
        # A team that has failed refuses calls with a plain TeamError.
        if isinstance(before, PeerError) or type(before) is TeamError:
            return Severity.CAUSED
        before = before.__cause__ or before.__context__
    return Severity.OWN


def expression(frame: FrameType) -> str:
    """Source of the call that `frame` is in, on one line; "" if unknown."""
    positions = list(frame.f_code.co_positions())
    if not 0 <= frame.f_lasti // 2 < len(positions):
        return ""
    first, last, start, end = positions[frame.f_lasti // 2]
    if None in (first, last, start, end):
        return ""
    lines = linecache.getlines(frame.f_code.co_filename)[first - 1 : last]
    lines = [line.encode() for line in lines]
    if len(lines) != last - first + 1:
        return ""
    lines[-1] = lines[-1][:end]  # columns count bytes; cut the end first, as both may be one line
    lines[0] = lines[0][start:]
    return " ".join(b" ".join(lines).decode(errors="replace").split())


def calls_mpi(frame: FrameType) -> bool:
    """Whether this frame, the innermost one, calls a method of an mpi4py object."""
    mpi = sys.modules.get("mpi4py.MPI")
    try:
        call = ast.parse(expression(frame), mode="eval").body
    except SyntaxError:
        return False
    if mpi is None or not isinstance(call, ast.Call):
        return False
    if isinstance(call.func, ast.Name):
        return _of_mpi(getattr(_value(call.func, frame), "__self__", None)) is True
    if not isinstance(call.func, ast.Attribute):
        return False
    known = _of_mpi(_value(call.func.value, frame))
    # If the object can't be determined without running code, the method's name decides.
    kinds = (mpi.Intracomm, mpi.Intercomm, mpi.Prequest, mpi.Message, mpi.Win, mpi.File)
    return any(hasattr(kind, call.func.attr) for kind in kinds) if known is None else known


_UNKNOWN = object()


def _of_mpi(value: object) -> bool | None:
    if value is _UNKNOWN or isinstance(value, property):
        return None
    kind = value if isinstance(value, type) else type(value)
    return any(str(each.__module__).startswith("mpi4py") for each in kind.__mro__)


def _value(node: ast.expr, frame: FrameType) -> object:
    """The value of a dotted name in `frame`, found without running any of its code."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id, _UNKNOWN))
    owner = _value(node.value, frame) if isinstance(node, ast.Attribute) else _UNKNOWN
    return owner if owner is _UNKNOWN else inspect.getattr_static(owner, node.attr, _UNKNOWN)


def install(folder: str) -> None:
    """Install the hooks in this engine; collective. `folder` has the engines' files and pipes."""
    from ipykernel.ipkernel import IPythonKernel
    from mpi4py import MPI

    from numba_kernels.team.world import world_of

    hooks = Hooks(IPythonKernel.instance())
    text_bars()
    hide_tensorflow_chatter()  # of cells that import Keras first
    with contextlib.suppress(OSError):  # the folder is not on this node, or the pipe is on another
        hooks.alive = os.open(pipe(folder, MPI.COMM_WORLD.rank), os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(OSError):
        path = Path(folder, f"where_is_{MPI.COMM_WORLD.rank}")
        # Stays open while the engine lives; readable by its owner only, whatever the umask is.
        owners = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        hooks.file = os.fdopen(owners, "wb", buffering=0)
        faulthandler.register(WRITE, hooks.file, all_threads=False)
    world_of(MPI.COMM_WORLD)  # so that a rank that waits while the first team is made sees failures
    MPI.COMM_WORLD.allreduce(0)  # the first call holds the GIL: see KEEPS_GIL in engine_probe.py
