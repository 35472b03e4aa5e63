"""Tracing: record what this process does, and when, as spans of time.

    with trace.Recording() as seen:
        with trace.span("load"):
            ...
        team.allreduce(x)
    seen.spans                    # [("load", begin, end), ("allreduce", ...), ("wait", ...), ...]

Times are nanoseconds of the system's monotonic clock, that of `time.perf_counter_ns`, which all
processes of a node share; clocks.py compares the clocks of several nodes.

A wait in compiled code is one span, even if it returns to Python in between. A wait for messages
includes the time of their transfer.

Spans of the recording thread are kept, and nest; those of other threads are only counted, unless
they stand in for the recording thread (spans.standing_in). Memory is bounded: only the last `limit`
spans are kept, and the number of lost ones is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import get_ident
from time import perf_counter_ns

import numpy as np

from .. import spans
from ..spans import BEGAN, CAPACITY, COUNT, FLAG, HEAD, OWNER, RECORD, WAITS

LIMIT = 100_000  # spans of Python, and as many waits in compiled code: some 20 MB


class _Log:
    """The spans of this process, while one Recording or several nested ones are active."""

    def __init__(self, limit: int):
        self.spans: deque[tuple[str, int, int]] = deque(maxlen=limit)
        self.count = self.others = 0
        self.ring = np.zeros(HEAD + RECORD * limit, np.int64)
        append, mine = self.spans.append, get_ident()
        self.ring[[CAPACITY, OWNER]] = limit, mine

        def keep(name: str, begin: int, end: int) -> None:  # called in every step: must be fast
            if get_ident() == mine or get_ident() in spans.substitutes:
                self.count += 1
                append((name, begin, end))
            else:
                self.others += 1

        self.keep = keep

    def end_wait(self) -> None:
        """Do the same as `ended`; calling that from here would make Numba compile it again."""
        if get_ident() != int(self.ring[OWNER]):
            return  # the open wait is another thread's
        count, limit, begin = self.ring[[COUNT, CAPACITY, BEGAN]].tolist()
        if begin:
            place = HEAD + RECORD * (count % limit)
            self.ring[place : place + RECORD] = FLAG, begin, perf_counter_ns()
            self.ring[[COUNT, BEGAN]] = count + 1, 0

    def waits(self) -> list[tuple[str, int, int]]:
        count, limit = int(self.ring[COUNT]), int(self.ring[CAPACITY])
        table = self.ring[HEAD:].reshape(limit, RECORD)
        table = np.roll(table, -(count % limit), axis=0) if count > limit else table[:count]
        return [(WAITS[kind], begin, end) for kind, begin, end in table.tolist()]


_log: _Log | None = None
_recordings: list[Recording] = []  # active ones, the outermost first
_last_ring = None  # kept, because a kernel on another thread may still use its address


class Recording:
    """Records the spans of this process, from `start` to `stop`, or as a context manager.

    Recordings may be nested; the limit of the outermost one then applies to all.

    Attributes (valid after the end):
        spans: list of (name, begin, end), times in ns, ordered by begin; they nest.
        begin, end: those of the recording, ns.
        lost: number of earlier spans that exceeded the limit.
        others: number of spans of other threads, which are not kept.
    """

    def __init__(self, limit: int = LIMIT):
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit must be a whole number, at least 1, got {limit!r}")
        self.limit, self.spans, self.lost, self.others = limit, [], 0, 0
        self.begin = self.end = 0

    def start(self) -> Recording:
        global _log, _last_ring
        if self in _recordings:
            raise RuntimeError("this recording has already started")
        if _log is None:
            _log = _Log(self.limit)
            _last_ring = _log.ring
            spans.record_to(_log.ring.ctypes.data, _log.keep, _log.end_wait)
        _recordings.append(self)
        self._before = _log.count + int(_log.ring[COUNT]), _log.others
        self.begin = perf_counter_ns()
        return self

    def stop(self) -> Recording:
        global _log
        if self not in _recordings:
            raise RuntimeError("this recording has not started, or has stopped")
        log, self.end = _log, perf_counter_ns()
        _recordings.remove(self)
        if not _recordings:
            _log = None
            spans.record_to(0, None, bool)
        count, others = self._before
        waits = log.waits()
        # If one of the two sources has lost spans, cut the other one at the same time.
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
    """Sort spans by begin, outer ones first, and cut each at the end of its outer span."""
    found, ends = [], []
    for name, begin, end in sorted(spans, key=lambda s: (s[1], -s[2])):
        while ends and ends[-1] <= begin:
            ends.pop()
        end = min(end, ends[-1]) if ends else end
        ends.append(end)
        found.append((name, begin, end))
    return found
