"""Runs on every engine: look at its main thread from another one, to say what it does.

To say how long it computed, talked and waited lately, a thread looks every 20 ms, as long as
somebody asks. So collectives take no longer, and nothing happens while nobody watches the cell.
"""

import ctypes
import inspect
import linecache
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType, ModuleType

import psutil

from .protocol import Doing

LONGEST = 60  # characters of an expression to show
EVERY = 0.02  # seconds between two looks
ASKED = 6.0  # seconds after a question for which the thread looks on
LOOKS = 500  # as many are kept: 10 s
LONG = 10 * EVERY  # what takes longer between two looks kept Python's lock, so it was computing


def waits() -> dict:
    """The fields of Doing that tell what this process waits in, if it does."""
    from numba_kernels.team import activity

    wait = activity.wait()
    if wait is None:
        return {}
    making = wait.call.startswith("making ")  # a team: see failure.py and world.py
    return {
        "waits": "Team()" if making else wait.call.partition("(")[0],
        "waited": wait.seconds,
        "number": wait.number,
        "team": wait.ranks,
        "missing": wait.missing,
    }


class Shares:
    """What the running cell did in the last seconds. `look` tells the kind of it at a moment.

    `calls` changes with each call of a team.
    """

    def __init__(self, look: Callable[[], str], calls: Callable[[], int], kinds: tuple[str, ...]):
        self.look, self.calls, self.kinds = look, calls, kinds
        self.before, self.until, self.looks, self.running = 0, 0.0, False, False
        self.seen: deque[tuple[str, float]] = deque()  # kinds, seconds since the look before

    def begin(self) -> None:
        """A cell begins."""
        self.running, self.before, self.seen = True, self.calls(), deque(maxlen=LOOKS)

    def end(self) -> None:
        self.running = False

    def asked(self) -> dict:
        """The fields of Doing about this cell: the share of each kind, and if it called a team."""
        self.until = time.monotonic() + ASKED
        if self.running and not self.looks:
            self.looks = True
            threading.Thread(target=self.run, name="shares", daemon=True).start()
        seconds = dict.fromkeys(self.kinds, 0.0)
        for kind, passed in list(self.seen):
            seconds[kind] += passed
        whole = sum(seconds.values())
        used = self.calls() != self.before or any(seconds[kind] for kind in self.kinds[1:])
        shares = [seconds[kind] / whole for kind in self.kinds] if whole else []
        return {"shares": shares, "talks": used}

    def run(self) -> None:
        """Look until the cell ends, or nobody has asked for a while."""
        seen, last = self.seen, time.monotonic()
        while self.running and last < self.until:
            time.sleep(EVERY)
            kind, now = self.look(), time.monotonic()
            passed = now - last
            if passed > LONG:
                seen.append((self.kinds[0], passed - EVERY))
                passed = EVERY
            seen.append((kind, passed))
            seen, last = self.seen, now  # of another cell, perhaps
        self.looks = False


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
