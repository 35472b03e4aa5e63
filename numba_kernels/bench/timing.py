"""Reliable timing: interleaved, in full cycles, on pinned ranks, with medians.

Benchmarks of collectives can mislead in these ways, which are avoided here as follows:

- If an allreduce is repeated on a buffer that is not touched in between, every cache line stays
  with its last owner. A training step writes the buffer before and reads it after. So a full cycle
  (write, reduce, read) is timed for ours and for the peer, and the same cycle without a reduction,
  in the same memory, is subtracted. (The usual repeated call is timed as well.)
- Other programs slow down the contestant that is measured at that moment. So all contestants take
  turns, many times; the result is the median over turns of the median over a turn's batches.
- At the beginning of a turn the caches hold the data of the previous contestant. So the first call
  of every turn is not timed.
- Ranks may start at different times, and may or may not wait for each other. So calls are timed in
  batches between two barriers, including the second one: a batch takes as long as the slowest rank.
- Two ranks that alternate on one core may look fast. So every rank is pinned to a core.
- Memory that is freed may go back to the system, page by page (see `keep_memory`).
- The place of memory differs from start to start. So ranks are started several times, and the
  result is the median over starts.
"""

import ctypes
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = 10  # per turn, at most
LEAST = 3  # rounds
RESOLUTION = 0.01  # of a cycle: a shorter reduction can't be distinguished from noise
CORES = sorted(os.sched_getaffinity(0))  # those that this process may use, before it is pinned


def pin(rank: int) -> None:
    """Pin this thread, and threads it starts, to one of the usable cores, chosen by rank."""
    os.sched_setaffinity(0, {CORES[rank % len(CORES)]})


def keep_memory() -> None:
    """Let this process keep the memory that it frees, where the C library is glibc.

    By default glibc gives large pieces back to the system. Who needs them again then waits for it
    to clear them, page by page: a fifth of the time of numpy's matrix products, where a pipeline
    frees activations while it goes on. And it depends on the order of frees, so on the rank.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        # M_MMAP_THRESHOLD: before glibc 2.35 it is at most 32 MiB, and mallopt refuses more.
        # M_TRIM_THRESHOLD alone would make things worse.
        if mallopt(-3, 2**30) or mallopt(-3, 2**25):
            mallopt(-1, 2**30)


def sleeping_barrier(comm) -> None:
    """A barrier that sleeps while it waits, because ranks may share a core with a busy one."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-4)


def interleaved(
    calls: Sequence[Callable[[], object]],
    together: Callable[[], None] = lambda: None,
    seconds: float = 1.0,
    rounds: int = 9,
) -> np.ndarray:
    """Return the seconds of each call, timed in turns: (rounds, calls), the same on all ranks.

    `together` is a barrier of all ranks. The total time `seconds` determines the length of turns;
    if even single calls take longer, there are fewer rounds, but at least `LEAST`.
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
    for more in (10, 100):  # so that the barrier's time is not counted as the call's
        once = slowest(
            [turn(c, 3, more) if t * more < 3e-3 else t for c, t in zip(calls, once, strict=True)]
        )
    fitting = np.maximum(1, seconds / rounds / len(calls) / once - 1)  # less the one not timed
    batches = np.minimum(fitting, BATCHES).astype(int)
    repeats = np.minimum(fitting / batches, 1000).astype(int)
    turns = list(zip(calls, batches, repeats, strict=True))
    times: list[list[float]] = []
    while len(times) < LEAST or (len(times) < rounds and slowest(time.perf_counter() - end) < 0):
        times.append([turn(*its) for its in turns])
    return slowest(times)


def slowest(times) -> np.ndarray:
    """Return the element-wise maximum over ranks, as all must repeat a call equally often."""
    from mpi4py import MPI

    times = np.array(times, np.float64)
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return times


def shares(items: Sequence, seconds: float) -> Iterator[tuple[Any, float]]:
    """Yield each item with its share of the time left: what one takes too much, others get less."""
    end = time.perf_counter() + seconds
    for done, item in enumerate(items):
        left = slowest(end - time.perf_counter()) / (len(items) - done)
        yield item, max(0.01, float(left))


def net(cycle: np.ndarray, nothing: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Return the seconds of the reduction: a full cycle less the same cycle without a reduction.

    For large vectors this is a small difference of two large times. So the result is at least
    `RESOLUTION` of the cycle, and at least `least`: the time of a reduction that is repeated on
    data in the caches where it left them, which is the best case.
    """
    return np.maximum(cycle - nothing, np.maximum(RESOLUTION * cycle, least))


def copy_bandwidth(together: Callable[[], None] = lambda: None, mib: int = 64) -> float:
    """Return the bytes per second that all ranks together copy, all at once, each on its core.

    Bytes read and bytes written both count, so copying n bytes counts 2 n. Every
    `fraction_of_limit` refers to this limit. It is the limit of a copy, not of the hardware: a copy
    must also fetch the lines that it overwrites, which in-place work need not, and caches are
    faster still. So fractions above 1 are possible. (This differs from
    tutorial_dl.simulate.steps.copy_bandwidth, which uses one core while the rest are idle.)
    """
    from mpi4py import MPI

    source = np.ones(mib << 20, np.uint8)
    target = np.empty_like(source)
    times = interleaved([lambda: np.copyto(target, source)], together, seconds=0.3, rounds=5)
    return MPI.COMM_WORLD.size * 2 * source.nbytes / float(np.median(times))


def machine() -> str:
    """Return the processor's name and the number of usable cores."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {len(CORES)} cores"
