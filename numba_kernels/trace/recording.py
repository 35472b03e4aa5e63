"""Tracing: what this process does when, as spans of time; switched on only while somebody looks.

    with trace.Recording() as seen:
        with trace.span("load"):
            ...
        team.allreduce(x)
    seen.spans                    # [("load", begin, end), ("allreduce", ...), ("wait", ...), ...]

Times are nanoseconds of the system's monotonic clock, which all processes of a node share (it is
that of `time.perf_counter_ns`); clocks.py compares the clocks of several nodes.

Code announces its spans through numba_kernels/spans.py. A wait in compiled code that comes back to
Python to look around, and goes on, is one span; where a message is waited for, the time that the
message travels is part of it.

Spans of the thread that records are kept, and nest; those of other threads are counted. Memory is
bounded: of more spans than `limit` the last ones are kept, and it is said how many were lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import get_ident
from time import perf_counter_ns

import numpy as np

from .. import spans
from ..spans import BEGAN, CAPACITY, COUNT, FLAG, HEAD, RECORD, WAITS

LIMIT = 100_000  # spans of Python, and as many waits of compiled code: some 20 MB

# In Python -------------------------------------------------------------------------------------


class _Log:
    """What is being recorded in this process, by one Recording or by several within each other."""

    def __init__(self, limit: int):
        self.spans: deque[tuple[str, int, int]] = deque(maxlen=limit)
        self.count = self.others = 0
        self.ring = np.zeros(HEAD + RECORD * limit, np.int64)
        self.ring[CAPACITY] = limit
        self.keep = self._keeper()

    def _keeper(self):
        append, mine = self.spans.append, get_ident()

        def keep(name: str, begin: int, end: int) -> None:  # called in every step: kept short
            if get_ident() == mine:
                self.count += 1
                append((name, begin, end))
            else:
                self.others += 1

        return keep

    def end_wait(self) -> None:
        """What `ended` does; calling that from here would make Numba compile it once more."""
        count, limit, begin = self.ring[[COUNT, CAPACITY, BEGAN]].tolist()
        if begin:
            place = HEAD + RECORD * (count % limit)
            self.ring[place : place + RECORD] = FLAG, begin, perf_counter_ns()
            self.ring[[COUNT, BEGAN]] = count + 1, 0

    def waits(self) -> list[tuple[str, int, int]]:
        """Those that the ring still has, in order."""
        count, limit = int(self.ring[COUNT]), int(self.ring[CAPACITY])
        table = self.ring[HEAD:].reshape(limit, RECORD)
        table = np.roll(table, -(count % limit), axis=0) if count > limit else table[:count]
        return [(WAITS[kind], begin, end) for kind, begin, end in table.tolist()]


_log: _Log | None = None
_recordings: list[Recording] = []  # that go on, the outermost first
_last_ring = None  # a kernel on another thread may hold its address a moment longer


class Recording:
    """Records the spans of this process, from `start` to `stop`, or as a context manager.

    Recordings may lie within each other; all have the limit of the outermost one then.

    Attributes, after the end:
        spans: (name, begin, end), times in ns, in order of their begins; they nest
        begin, end: of the recording
        lost: spans before those, which went over the limit
        others: spans of other threads; they are not kept
    """

    def __init__(self, limit: int = LIMIT):
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"a limit of {limit!r} spans; a whole number from 1 up is right")
        self.limit, self.spans, self.lost, self.others = limit, [], 0, 0
        self.begin = self.end = 0

    def start(self) -> Recording:
        if self in _recordings:
            raise RuntimeError("this recording goes on already")
        if _log is None:
            _switch_on(self.limit)
        _recordings.append(self)
        self._before = _log.count + int(_log.ring[COUNT]), _log.others
        self.begin = perf_counter_ns()
        return self

    def stop(self) -> Recording:
        if self not in _recordings:
            raise RuntimeError("this recording does not go on")
        log, self.end = _log, perf_counter_ns()
        _recordings.remove(self)
        if not _recordings:
            _switch_off()
        count, others = self._before
        waits = log.waits()
        # Where one of the two has lost some, the other one is cut at the same time.
        complete = max(
            log.spans[0][2] if log.count > len(log.spans) else 0,
            waits[0][2] if log.ring[COUNT] > len(waits) else 0,
        )
        kept = (s for s in (*log.spans, *waits) if s[1] >= self.begin and s[2] >= complete)
        self.spans = nested(kept)
        self.lost = log.count + int(log.ring[COUNT]) - count - len(self.spans)
        self.others = log.others - others
        return self

    __enter__ = start

    def __exit__(self, *error) -> None:
        self.stop()


def nested(spans: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """In order of their begins, outer ones first; what reaches beyond an outer one is cut there.

    Only waits of another thread's kernels do that.
    """
    found, ends = [], []
    for name, begin, end in sorted(spans, key=lambda s: (s[1], -s[2])):
        while ends and ends[-1] <= begin:
            ends.pop()
        end = min(end, ends[-1]) if ends else end
        ends.append(end)
        found.append((name, begin, end))
    return found


# Switching on and off --------------------------------------------------------------------------


def _switch_on(limit: int) -> None:
    global _log, _last_ring
    _log = _Log(limit)
    _last_ring = _log.ring
    spans.record_to(_log.ring.ctypes.data, _log.keep, _log.end_wait)


def _switch_off() -> None:
    global _log
    _log = None
    spans.record_to(0, None, bool)
