"""Spans: how code announces what it does, for a recording to keep (trace/recording.py).

- `span(name)` and `each(name, items)` mark any stretch of Python code.
- `@announces(name)` marks the methods of Team and Step.
- `began()` and `ended(kind)` mark waits inside compiled code. They write to a ring in memory whose
  address is in one word of the process; the word is 0 while nothing records.

Times are nanoseconds of the system's monotonic clock (that of `time.perf_counter_ns`). While
nothing records, `sink` is None and a span costs one comparison. This module does not import MPI.
"""

import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from time import perf_counter_ns

from llvmlite import ir
from llvmlite.binding import add_symbol
from numba import types
from numba.extending import intrinsic

from .jit.atomics import load_acquire, store_release
from .jit.compile import compiled

# The ring buffer, in int64 words: a head, then (kind, begin, end) of each wait.
COUNT, CAPACITY, BEGAN, SECONDS, NANOSECONDS, OWNER = range(6)
HEAD, RECORD = 8, 3
FLAG, MESSAGE = 0, 1  # kinds of wait: for a flag in shared memory, or for a message
WAITS = ("wait", "wait (message)")  # their names
# The names under which Team and Step announce their calls.
COLLECTIVES = (
    "allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "scatter", "barrier",
    "split", "empty", "exchange",
)  # fmt: skip
STEP = ("reduce + update", "reduce", "update", "hand out")
SUMS = ("sum forward", "sum backward")  # of tensor parallelism, within the gradient
_CLOCK_MONOTONIC = 1  # on Linux

_WORD = "numba_kernels_trace"  # symbol of the word that holds the ring's address; 0: tracing is off
_word = ctypes.c_int64(0)
add_symbol(_WORD, ctypes.addressof(_word))

#                                                             clock        timespec
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_thread = types.ExternalFunction("pthread_self", types.int64())


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
    if at != 0 and load_acquire(at + 8 * OWNER) == _thread() and load_acquire(at + 8 * BEGAN) == 0:
        store_release(at + 8 * BEGAN, now(at))


@compiled
def ended(kind):
    at = ring()
    if at == 0 or load_acquire(at + 8 * OWNER) != _thread():
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


# Threads (`get_ident`) whose spans count as those of the recording thread; see `standing_in`.
substitutes: set[int] = set()
# Where finished spans go: sink(name, begin, end). None while nothing records.
sink: Callable[[str, int, int], None] | None = None
# Ends a wait of compiled code that an error interrupted; set together with `sink`. (`bool` does
# nothing.)
end_wait: Callable[[], None] = bool


def record_to(ring_address: int, keep: Callable | None, finish_wait: Callable[[], None]) -> None:
    """Have all spans of this process go to `keep`, and waits of compiled code to the ring.

    `ring_address` is that of an int64 array of HEAD + RECORD * capacity words; 0 and None stop
    recording. `finish_wait`: see `end_wait`.
    """
    global sink, end_wait
    _word.value, sink, end_wait = ring_address, keep, finish_wait


def record(name: str, begin: int) -> None:
    """Record a span from `begin` (ns) until now, if this process records."""
    end = perf_counter_ns()
    if sink is not None:
        sink(name, begin, end)


def announces(name: str):
    """Decorator: every call of the method is a span called `name`, while this process records.

    It costs 0.1 us per call. Team.allreduce and Team.barrier, which take a few, test `sink`
    themselves.
    """

    def decorate(method):
        @functools.wraps(method)
        def call(*arguments, **options):
            if sink is None:
                return method(*arguments, **options)
            begin = perf_counter_ns()
            try:
                return method(*arguments, **options)
            finally:
                record(name, begin)

        return call

    return decorate


@contextmanager
def standing_in() -> Iterator[None]:
    """In the body, spans of this thread count as the recording thread's, which waits for it.

    Libraries that run a graph (TensorFlow) call functions of ours on threads of their own.
    """
    mine, address = get_ident(), _word.value
    if sink is None or not address:
        yield
        return
    owner = ctypes.c_int64.from_address(address + 8 * OWNER)
    before, owner.value = owner.value, mine
    substitutes.add(mine)
    try:
        yield
    finally:
        substitutes.discard(mine)
        owner.value = before


class Span:
    __slots__ = ("begin", "name")

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        self.begin = perf_counter_ns()

    def __exit__(self, *error) -> None:
        record(self.name, self.begin)


_nothing = nullcontext()


def span(name: str) -> Span | nullcontext:
    """Return a context manager whose body is recorded as a span, if this process records."""
    return _nothing if sink is None else Span(name)


def each(name: str, items: Iterable) -> Iterator:
    """Yield the same items, and record a span for the time that each one takes to arrive."""
    items = iter(items)
    while True:
        begin = perf_counter_ns()
        try:
            item = next(items)
        except StopIteration:
            return
        record(name, begin)
        yield item
