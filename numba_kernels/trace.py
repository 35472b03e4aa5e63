"""Tracing: record what this process does, and when, as spans of time.

    with trace.Recording() as seen:
        with trace.span("load"):
            ...
        team.allreduce(x)
    seen.spans                    # [("load", begin, end), ("allreduce", ...), ("wait", ...), ...]

Times are nanoseconds of the system's monotonic clock, that of `time.perf_counter_ns`, which all
processes of a node share; trace_ranks.py compares the clocks of several nodes.

Spans have three sources:

- `span(name)` and `each(name, items)`, which mark code
- methods of a Team and of a fused step: they are wrapped while tracing is on, so they cost nothing
  while it is off (a bound method taken before, such as `call = team.barrier`, is not traced)
- waits in compiled code (`began`, `ended`), which are written to a ring buffer. A kernel finds its
  address in one word of this process. A wait is one span, even if it returns to Python in between.
  A wait for messages includes the time of their transfer.

Spans of the recording thread are kept, and nest; those of other threads are only counted. Memory is
bounded: only the last `limit` spans are kept, and the number of lost ones is reported.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from threading import get_ident
from time import perf_counter_ns

import numpy as np
from llvmlite import ir
from llvmlite.binding import add_symbol
from numba import types
from numba.extending import intrinsic

from .atomics import load_acquire, store_release
from .compile import compiled
from .launch import under_mpi

LIMIT = 100_000  # spans of Python, and as many waits in compiled code: some 20 MB

# The ring buffer, in int64 words: a head, then (kind, begin, end) of each wait.
COUNT, CAPACITY, BEGAN, SECONDS, NANOSECONDS = range(5)
HEAD, RECORD = 8, 3
FLAG, MESSAGE = 0, 1  # kinds of wait: for a flag in shared memory, or for a message
WAITS = ("wait", "wait (message)")  # their names
_CLOCK_MONOTONIC = 1  # on Linux

_WORD = "numba_kernels_trace"  # symbol of the word that holds the ring's address; 0: tracing is off
_word = ctypes.c_int64(0)
add_symbol(_WORD, ctypes.addressof(_word))

#                                                             clock        timespec
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))


# In compiled code ------------------------------------------------------------------------------


@intrinsic
def ring(typingctx):
    """Return the address of this process's ring; 0 while tracing is off.

    The word is found by its symbol, so code from the disk cache finds that of its own process.
    """

    def generate(context, builder, signature, arguments):
        module, word = builder.module, ir.IntType(64)
        variable = module.globals.get(_WORD) or ir.GlobalVariable(module, word, _WORD)
        return builder.load(variable)

    return types.int64(), generate


@compiled
def began():
    """Record the beginning of a wait, unless this rank is waiting already."""
    at = ring()
    if at != 0 and load_acquire(at + 8 * BEGAN) == 0:
        store_release(at + 8 * BEGAN, now(at))


@compiled
def ended(kind):
    """Record the end of the wait, if there was one."""
    at = ring()
    if at == 0:
        return
    begin = load_acquire(at + 8 * BEGAN)
    if begin == 0:
        return
    count = load_acquire(at + 8 * COUNT)
    place = at + 8 * (HEAD + RECORD * (count % load_acquire(at + 8 * CAPACITY)))
    store_release(place, kind)
    store_release(place + 8, begin)
    store_release(place + 16, now(at))
    store_release(at + 8 * COUNT, count + 1)
    store_release(at + 8 * BEGAN, 0)


@compiled
def now(at):
    """Return nanoseconds as `time.perf_counter_ns` does; the ring's head holds the timespec."""
    _clock_gettime(_CLOCK_MONOTONIC, at + 8 * SECONDS)
    return 1_000_000_000 * load_acquire(at + 8 * SECONDS) + load_acquire(at + 8 * NANOSECONDS)


# In Python -------------------------------------------------------------------------------------


class _Log:
    """The spans of this process, while one Recording or several nested ones are active."""

    def __init__(self, limit: int):
        self.spans: deque[tuple[str, int, int]] = deque(maxlen=limit)
        self.count = self.others = 0
        self.ring = np.zeros(HEAD + RECORD * limit, np.int64)
        self.ring[CAPACITY] = limit
        self.keep = self._keeper()

    def _keeper(self):
        append, mine = self.spans.append, get_ident()

        def keep(name: str, begin: int, end: int) -> None:  # called in every step: must be fast
            if get_ident() == mine:
                self.count += 1
                append((name, begin, end))
            else:
                self.others += 1

        return keep

    def end_wait(self) -> None:
        """Do the same as `ended`; calling that from here would make Numba compile it again."""
        count, limit, begin = self.ring[[COUNT, CAPACITY, BEGAN]].tolist()
        if begin:
            place = HEAD + RECORD * (count % limit)
            self.ring[place : place + RECORD] = FLAG, begin, perf_counter_ns()
            self.ring[[COUNT, BEGAN]] = count + 1, 0

    def waits(self) -> list[tuple[str, int, int]]:
        """Return the waits that the ring still holds, in order."""
        count, limit = int(self.ring[COUNT]), int(self.ring[CAPACITY])
        table = self.ring[HEAD:].reshape(limit, RECORD)
        table = np.roll(table, -(count % limit), axis=0) if count > limit else table[:count]
        return [(WAITS[kind], begin, end) for kind, begin, end in table.tolist()]


_log: _Log | None = None
_recordings: list[Recording] = []  # active ones, the outermost first
_before: list[tuple[type, str, object]] = []  # the original methods, to restore afterwards
_last_ring = None  # kept, because a kernel on another thread may still use its address


class Span:
    """See `span`."""

    __slots__ = ("begin", "name")

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        self.begin = perf_counter_ns()

    def __exit__(self, *error) -> None:
        end = perf_counter_ns()
        if _log is not None:
            _log.keep(self.name, self.begin, end)


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, *error) -> None: ...


_nothing = _Nothing()


def span(name: str) -> Span | _Nothing:
    """Return a context manager whose body is recorded as a span, if this process records."""
    return _nothing if _log is None else Span(name)


def each(name: str, items: Iterable) -> Iterator:
    """Yield the same items, and record a span for the time that each one takes to arrive."""
    items = iter(items)
    while True:
        begin = perf_counter_ns()
        try:
            item = next(items)
        except StopIteration:
            return
        end = perf_counter_ns()
        if _log is not None:
            _log.keep(name, begin, end)
        yield item


class Recording:
    """Records the spans of this process, from `start` to `stop`, or as a context manager.

    Recordings may be nested; the limit of the outermost one then applies to all.

    Args:
        limit: the most spans to keep, at least 1.

    Attributes (valid after the end):
        spans: list of (name, begin, end), times in ns, ordered by begin; they nest.
        begin: begin of the recording, ns.
        end: end of the recording, ns.
        lost: number of earlier spans that exceeded the limit.
        others: number of spans of other threads, which are not kept.
    """

    def __init__(self, limit: int = LIMIT):
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit must be a whole number, at least 1, got {limit!r}")
        self.limit, self.spans, self.lost, self.others = limit, [], 0, 0
        self.begin = self.end = 0

    def start(self) -> Recording:
        if self in _recordings:
            raise RuntimeError("this recording has already started")
        if _log is None:
            _switch_on(self.limit)
        _recordings.append(self)
        self._before = _log.count + int(_log.ring[COUNT]), _log.others
        self.begin = perf_counter_ns()
        return self

    def stop(self) -> Recording:
        if self not in _recordings:
            raise RuntimeError("this recording has not started, or has stopped")
        log, self.end = _log, perf_counter_ns()
        _recordings.remove(self)
        if not _recordings:
            _switch_off()
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
    """Sort spans by begin, outer ones first, and cut each at the end of its outer span.

    Only waits in another thread's kernels reach beyond an outer span.
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
    _word.value = _log.ring.ctypes.data
    if "mpi4py.MPI" in sys.modules or under_mpi():  # otherwise no Team can exist
        _wrap_methods()


def _wrap_methods() -> None:
    from .fused import Step
    from .team import Team
    from .waiting import Waiting

    for kind, names in (
        (Team, {"__init__": "Team"}),
        (Team, dict.fromkeys(COLLECTIVES)),
        (Waiting, {"_until": "wait"}),
        (Step, STEP),
    ):
        for name, called in names.items():
            _wrap(kind, name, _spanned(getattr(kind, name), called or name))
    _wrap(Waiting, "_wait", _closing(Waiting._wait))


def _switch_off() -> None:
    global _log
    _word.value, _log = 0, None
    while _before:
        setattr(*_before.pop())


COLLECTIVES = (
    "allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "barrier", "split",
    "empty",
)  # fmt: skip
STEP = {
    "_in_one_pass": "reduce + update", "_reduce": "reduce", "_update": "update",
    "_hand_out": "hand out",
}  # fmt: skip


def _wrap(kind: type, name: str, method) -> None:
    _before.append((kind, name, getattr(kind, name)))
    setattr(kind, name, method)


def _spanned(method, name: str):
    @functools.wraps(method)
    def call(*arguments, **options):
        begin = perf_counter_ns()
        try:
            return method(*arguments, **options)
        finally:
            end = perf_counter_ns()
            if _log is not None:
                _log.keep(name, begin, end)

    return call


def _closing(method):
    """Wrap a waiting method so that an error ends the span of its wait."""

    @functools.wraps(method)
    def wait(*arguments, **options):
        try:
            return method(*arguments, **options)
        except BaseException:
            if _log is not None:
                _log.end_wait()
            raise

    return wait
