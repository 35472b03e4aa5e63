"""Runs on every engine: look at its main thread from another one, to say what it does."""

import ctypes
import inspect
import linecache
import re
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, ModuleType

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
    """Whether this frame, the innermost one, calls a method of an mpi4py object.

    No code of the frame is run for that. Nor is its source parsed: until Python 3.13, two threads
    that do so at the same time may get a SystemError, and the main thread may be one of them.
    """
    mpi, text = sys.modules.get("mpi4py.MPI"), expression(frame)
    if mpi is None or not text.endswith(")"):
        return False
    called = CALL.match(text)
    if called is None:  # of what an expression gives: the method's name decides
        return any(_is_method(mpi, name) for name in re.findall(r"\.(\w+)\(", text))
    first, *names = called[1].split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first, _UNKNOWN))
    if not names:
        return _is_mpi(getattr(value, "__self__", None))
    for name in names[:-1]:
        value = value if value is _UNKNOWN else inspect.getattr_static(value, name, _UNKNOWN)
    unknown = value is _UNKNOWN or isinstance(value, property)
    return _is_method(mpi, names[-1]) if unknown else _is_mpi(value)


# A dotted name and its arguments: brackets are closed at the end, and no deeper than three
CALL = re.compile(r"([\w.]+)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\Z")
_UNKNOWN = object()


def _is_method(mpi: ModuleType, name: str) -> bool:
    kinds = (mpi.Intracomm, mpi.Intercomm, mpi.Prequest, mpi.Message, mpi.Win, mpi.File)
    return any(hasattr(kind, name) for kind in kinds)


def _is_mpi(value: object) -> bool:
    kind = value if isinstance(value, type) else type(value)
    return any(str(each.__module__).startswith("mpi4py") for each in kind.__mro__)
