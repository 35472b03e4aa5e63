"""What runs on every engine: hooks around its cells, and an answer to "what do you do?".

The hooks make plain %%px cells safe: a cell that fails on one rank tells the ranks of its teams,
which then raise PeerError where they wait.

The answer comes from the engine's control thread, so it comes while the main thread is busy, even
in a blocking MPI call (mpi4py lets go of the GIL there). It costs an engine nothing until somebody
asks. An engine whose main thread keeps the GIL inside compiled code cannot answer; it is sent a
signal at which faulthandler, which is C, writes into a file which line of Python it is in.
"""

from __future__ import annotations

import ast
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
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import psutil

from .deaths import pipe

QUESTION = "doing_request"
CELL = "tutorial_dl_cell"  # a cell's number, in the metadata of the request to run it
LONGEST = 60  # characters of an expression that are shown
WRITE = getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 7) + 7  # "write down where you are"


class Doing(NamedTuple):
    """What an engine does.

    Attributes:
        state: "idle" or "running".
        call: Source of the expression that the cell is in, as "comm.allreduce(x)"; "" if unknown.
        line: Its line in the cell that runs, from 1; 0 if unknown.
        mpi: The main thread is in a method of mpi4py.
        silent: Seconds for which it is known that no Python code ran in the main thread (0 at the
            first question). Signals, too, are handled by Python code: a main thread that is silent
            in a call of mpi4py is one that nothing can interrupt.
        memory: Resident bytes.
        processor: Cores used since the last question, in percent of one.
    """

    state: str
    call: str
    line: int
    mpi: bool
    silent: float
    memory: int
    processor: float

    @property
    def blocked(self) -> float:
        """Seconds for which it has been in an MPI call that nothing can interrupt."""
        return self.silent if self.mpi else 0.0

    def where(self) -> str:
        """As "comm.allreduce(x) (line 4)"."""
        return f"{self.call or 'its cell'}{f' (line {self.line})' if self.line else ''}"


class Hooks:
    """Lives in an engine: IPython's events around a cell, and the control channel's question."""

    def __init__(self, kernel):
        self.kernel, self.shell = kernel, kernel.shell
        self.process = psutil.Process()
        self.process.cpu_percent()  # counts from here
        self.unanswered: set[int] = set()
        self.asked = 0.0
        self.running = False
        self.shell.events.register("pre_execute", self.begin)  # also for code that is run silently
        self.shell.events.register("post_execute", self.end)
        self.shell.events.register("pre_run_cell", self.before_cell)
        self.shell.events.register("post_run_cell", self.after_cell)
        self.shell.set_custom_exc((BaseException,), self.raised)
        kernel.control_handlers[QUESTION] = self.answer

    def begin(self) -> None:
        self.running = True

    def end(self) -> None:
        self.running = False

    def before_cell(self, info) -> None:
        from numba_kernels import failing  # here, not in the notebook: it starts MPI

        request = self.kernel.get_parent("shell")
        failing.new_cell(request.get("metadata", {}).get(CELL))

    def after_cell(self, result) -> None:
        if result is None:  # an `await` was cancelled
            error = RuntimeError("the cell was cancelled")
        else:
            error = result.error_before_exec or result.error_in_exec
        if error is not None:
            tell_teams(error)

    def raised(self, shell, kind, error, trace, tb_offset=None) -> None:
        """IPython's handler of an exception: others are told before a traceback is made of it,
        which may take a second where many ranks share few cores."""
        tell_teams(error)
        if isinstance(error, KeyboardInterrupt):  # the client says so in one line
            shell._last_traceback = []
        else:
            shell.showtraceback(running_compiled_code=True)

    def answer(self, stream, identity, question) -> None:
        """The handler of QUESTION; called in the control thread."""
        content = self.doing()._asdict()
        self.kernel.session.send(stream, "doing_reply", content, question, ident=identity)

    def doing(self) -> Doing:
        state, call, line, mpi = "idle", "", 0, False
        if self.running or self.kernel.shell_is_blocking:  # the latter in ipyparallel's apply
            state = "running"
            innermost = sys._current_frames()[threading.main_thread().ident]
            call, line = self.call_of_cell(innermost)
            mpi = calls_mpi(innermost)
        return Doing(
            state, call, line, mpi, self.silent(), self.process.memory_info().rss,
            self.process.cpu_percent(),
        )  # fmt: skip

    def silent(self) -> float:
        """How long the main thread has run no Python code, as far as we know."""
        now = time.monotonic()
        if not self.unanswered:
            # Python calls PySet_Clear(unanswered) before the next piece of Python code that it
            # runs in the main thread. It is C, so that no Ctrl-C can strike inside of it.
            self.unanswered.add(1)
            self.asked = now
            python = ctypes.pythonapi
            clear = ctypes.cast(python.PySet_Clear, ctypes.c_void_p)
            python.Py_AddPendingCall(clear, ctypes.py_object(self.unanswered))
        return now - self.asked

    def call_of_cell(self, frame: FrameType | None) -> tuple[str, int]:
        """The innermost expression that stands in a cell, and the line of the running cell."""
        call, line = "", 0
        while frame is not None:
            if self.shell.compile.format_code_name(frame.f_code.co_filename) is not None:
                call = call or expression(frame)
                line = frame.f_lineno or 0  # of the outermost: functions may be of earlier cells
            frame = frame.f_back
        return call if len(call) <= LONGEST else call[: LONGEST - 3] + "...", line


def tell_teams(error: BaseException) -> None:
    """Have the ranks of all teams of this process raise PeerError; once for one error."""
    from numba_kernels import failing

    failing.abort_all(error)


def expression(frame: FrameType) -> str:
    """Source of what `frame` is just calling, on one line; "" where that is not known."""
    positions = list(frame.f_code.co_positions())
    if not 0 <= frame.f_lasti // 2 < len(positions):
        return ""
    first, last, start, end = positions[frame.f_lasti // 2]
    if None in (first, last, start, end):
        return ""
    lines = linecache.getlines(frame.f_code.co_filename)[first - 1 : last]
    lines = [each.encode() for each in lines]
    if len(lines) != last - first + 1:
        return ""
    lines[-1] = lines[-1][:end]  # columns count bytes; the end first: it may be the same line
    lines[0] = lines[0][start:]
    return " ".join(b" ".join(lines).decode(errors="replace").split())


def calls_mpi(frame: FrameType) -> bool:
    """Does this frame, the innermost, call a method of an object of mpi4py?"""
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
    # Where its object can't be known without running code, the method's name decides.
    kinds = (mpi.Intracomm, mpi.Intercomm, mpi.Prequest, mpi.Message, mpi.Win, mpi.File)
    return any(hasattr(kind, call.func.attr) for kind in kinds) if known is None else known


_UNKNOWN = object()


def _of_mpi(value: object) -> bool | None:
    if value is _UNKNOWN or isinstance(value, property):
        return None
    kind = value if isinstance(value, type) else type(value)
    return any(str(each.__module__).startswith("mpi4py") for each in kind.__mro__)


def _value(node: ast.expr, frame: FrameType) -> object:
    """What a dotted name stands for in `frame`, without running any code of it."""
    if isinstance(node, ast.Name):
        found = frame.f_locals.get(node.id, frame.f_globals.get(node.id, _UNKNOWN))
    elif isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        if owner is _UNKNOWN:
            return _UNKNOWN
        found = inspect.getattr_static(owner, node.attr, _UNKNOWN)
    else:
        return _UNKNOWN
    return found


def install(folder: str) -> None:
    """Put the hooks into this engine; collective.

    Args:
        folder: The cluster's own, for engines that cannot answer.
    """
    from ipykernel.ipkernel import IPythonKernel
    from mpi4py import MPI

    from numba_kernels.world import world_of

    hooks = Hooks(IPythonKernel.instance())
    with contextlib.suppress(OSError):  # a folder that this node does not see, or a pipe of another
        hooks.alive = os.open(pipe(folder, MPI.COMM_WORLD.rank), os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(OSError):
        path = Path(folder, f"where_is_{MPI.COMM_WORLD.rank}")
        # Stays open as long as the engine lives; for its owner only, whatever the site's umask is.
        owners = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        hooks.file = os.fdopen(owners, "wb", buffering=0)
        faulthandler.register(WRITE, hooks.file, all_threads=False)
    world_of(MPI.COMM_WORLD)  # so that also who waits while a first team is made hears of failures
    MPI.COMM_WORLD.allreduce(0)  # the first one of all: see KEEPS_GIL in asking.py
