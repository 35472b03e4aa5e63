"""Timing that can be trusted: interleaved, in full cycles, on pinned ranks, as medians.

Ways in which benchmarks of collectives lie, and what is done here:

- An allreduce repeated on a buffer that nobody touches leaves every cache line with its last owner.
  A training step writes the buffer before and reads it after. So a full cycle is timed, write,
  reduce, read, for ours and for the peer alike, and the same cycle without a reduction, in the same
  memory, is subtracted. (The usual repeated call is timed beside it.)
- A busy machine makes slow whoever is measured just then. So all take turns, many times over; the
  median batch counts in a turn, and the median turn in the end.
- Who takes a turn finds the caches full of what the contestant before worked on. So the first call
  of every turn is not counted.
- Ranks that start at different times wait for each other, or don't. So calls are timed in batches
  between two barriers, the second one inside: a batch takes as long as the slowest rank.
- Two ranks that may take turns on one core look fast. So every rank is pinned. (Not the threads
  that gloo works with: on the core of their rank they would be two to three times slower.)
- Where memory lies differs from start to start. So ranks are started several times, and the
  median of their medians counts.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

BATCHES = 10  # in a turn, at most
LEAST = 3  # rounds
RESOLUTION = 0.01  # of a cycle: what a reduction in it takes beyond this can be told from noise


CORES = sorted(os.sched_getaffinity(0))  # that this process may use, before it is pinned


def pin(rank: int) -> None:
    """Keep this thread, and those it starts, on one of the cores it may use, in turn by rank."""
    os.sched_setaffinity(0, {CORES[rank % len(CORES)]})


@contextmanager
def threads_unpinned() -> Iterator[None]:
    """Threads that are started meanwhile may use all cores."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def interleaved(
    calls: Sequence[Callable[[], object]],
    together: Callable[[], None] = lambda: None,
    seconds: float = 1.0,
    rounds: int = 9,
) -> np.ndarray:
    """Seconds that each call takes, shape (rounds, calls); the same on all ranks.

    Args:
        calls: the contestants. Each gets one turn a round, of several batches of calls.
        together: a barrier of all ranks
        seconds: for everything. Turns are as long as that allows; where even single calls take
            longer there are fewer rounds, but `LEAST`.
        rounds: at most
    """

    def turn(call, batches=1, repeats=1):
        call()
        times = np.empty(batches)
        together()
        for i in range(batches):
            started = time.perf_counter()
            for _ in range(repeats):
                call()
            together()
            times[i] = time.perf_counter() - started
        return np.median(times) / repeats

    end = time.perf_counter() + seconds
    once = slowest([turn(call) for call in calls])
    for more in (10, 100):  # so that a barrier is not taken for a part of the call
        once = slowest(
            [turn(c, 3, more) if t * more < 3e-3 else t for c, t in zip(calls, once, strict=True)]
        )
    fitting = np.maximum(1, seconds / rounds / len(calls) / once - 1)  # less the one not counted
    batches = np.minimum(fitting, BATCHES).astype(int)
    repeats = np.minimum(fitting / batches, 1000).astype(int)
    turns = list(zip(calls, batches, repeats, strict=True))
    times: list[list[float]] = []
    while len(times) < LEAST or (len(times) < rounds and slowest(time.perf_counter() - end) < 0):
        times.append([turn(*its) for its in turns])
    return slowest(times)


def slowest(times) -> np.ndarray:
    """Element by element the longest of all ranks' times: all must repeat a call equally often."""
    from mpi4py import MPI

    times = np.array(times, np.float64)
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return times


def net(cycle: np.ndarray, nothing: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Seconds of the reduction alone: a full cycle less the same cycle without a reduction.

    Of large vectors that is a small difference of two large times. So it is never less than
    `RESOLUTION` of the cycle, nor than `least`: what the reduction takes when it is repeated on
    data that lies where it left it, which is the best that can befall it.
    """
    return np.maximum(cycle - nothing, np.maximum(RESOLUTION * cycle, least))


def copy_bandwidth(together: Callable[[], None] = lambda: None, mib: int = 64) -> float:
    """Bytes a second that all ranks together copy, each on its core, all at once.

    Bytes read and bytes written count, so n bytes copied are 2 n. This is the limit that every
    `fraction_of_limit` refers to. It is a copy's, not the hardware's: a copy has to fetch the lines
    it overwrites, which work in place need not, and caches do better still. So fractions above 1
    exist. (tutorial_dl.training.prediction.copy_bandwidth is another: one core, the rest idle.)
    """
    from mpi4py import MPI

    source = np.ones(mib << 20, np.uint8)
    target = np.empty_like(source)
    times = interleaved([lambda: np.copyto(target, source)], together, seconds=0.3, rounds=5)
    return MPI.COMM_WORLD.size * 2 * source.nbytes / float(np.median(times))


def machine() -> str:
    """The processor's name and how many cores may be used."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name}, {len(CORES)} cores"
