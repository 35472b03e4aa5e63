"""Runs on every engine: look at its main thread from another one, to say what it does."""

import ast
import ctypes
import inspect
import linecache
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import psutil

from .engine_activity import Shares, waits
from .protocol import Doing

LONGEST = 60  # characters of an expression to show


class MainThread:
    """Looks at the main thread. `is_cell` tells whether a file is the source of a cell."""

    def __init__(self, shares: Shares, is_cell: Callable[[str], bool]):
        self.shares, self.is_cell = shares, is_cell
        self.process = psutil.Process()
        self.process.cpu_percent()  # starts the measurement
        self._unanswered: set[int] = set()
        self._asked = 0.0

    def doing(self, running: bool) -> Doing:
        """What this engine does; "running" if something changed while this was found out."""
        try:
            at = "idle", "", 0, False
            if running:
                innermost = sys._current_frames()[threading.main_thread().ident]
                at = "running", *self.call_of_cell(innermost), calls_mpi(innermost)
            used = self.process.memory_info().rss, self.process.cpu_percent()
            more = waits() | self.shares.asked() if running else {}
            return Doing(*at, self.silent(), *used, **more)
        except Exception:  # the main thread has changed what is looked at; the next answer is right
            return Doing("running", "", 0, False, 0.0, 0, 0.0)

    def silent(self) -> float:
        """Seconds for which the main thread is known to have run no Python code."""
        now = time.monotonic()
        if not self._unanswered:
            # Python calls PySet_Clear(unanswered) before it next runs Python code in the main
            # thread. It is a C function, so that Ctrl-C can't interrupt it.
            self._unanswered.add(1)
            self._asked = now
            python = ctypes.pythonapi
            clear = ctypes.cast(python.PySet_Clear, ctypes.c_void_p)
            python.Py_AddPendingCall(clear, ctypes.py_object(self._unanswered))
        return now - self._asked

    def call_of_cell(self, frame: FrameType | None) -> tuple[str, int]:
        """The innermost expression in the source of a cell, and the line of the running cell."""
        call, line = "", 0
        while frame is not None:
            if self.is_cell(frame.f_code.co_filename):
                call = call or expression(frame)
                line = frame.f_lineno or 0  # the outermost counts: functions may be older
            frame = frame.f_back
        return call if len(call) <= LONGEST else call[: LONGEST - 3] + "...", line


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
