"""Timing that can be trusted: interleaved, in full cycles, on pinned ranks, as medians.

Three ways in which benchmarks of collectives lie, and what is done here:

- An allreduce repeated on a buffer that nobody touches leaves every cache line with its last owner.
  A training step writes the buffer before and reads it after. So a full cycle is timed, write,
  reduce, read, for ours and for the peer alike, and the same cycle on private memory without a
  reduction is subtracted. (The usual repeated call is timed beside it.)
- Two ranks that may take turns on one core look fast. So every rank is pinned.
- Where memory lies differs from start to start. So ranks are started several times, and the
  median of their medians counts.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np


def pin(rank: int) -> None:
    """Keep this process on one of the cores it may use, in turn by rank."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def medians(
    calls: Sequence[Callable[[], None]],
    together: Callable[[], None] = lambda: None,
    rounds: int = 9,
    seconds: float = 0.02,
) -> list[float]:
    """Median seconds of each call, the calls taking turns.

    `together` brings the ranks together before each measurement. Every measurement repeats its
    call as often as `seconds` asks for; rank 0's clock would differ from the others', so the
    number of repeats is fixed from a first round by the slowest call's `repeats_for`.
    """
    repeats = [repeats_for(call, seconds, together) for call in calls]
    times = np.empty((rounds, len(calls)))
    for row in times:
        for i, call in enumerate(calls):
            together()
            started = time.perf_counter()
            for _ in range(repeats[i]):
                call()
            row[i] = (time.perf_counter() - started) / repeats[i]
    return list(np.median(times, axis=0))


def repeats_for(call, seconds: float, together) -> int:
    """How often `call` fits into `seconds`, the same on all ranks."""
    call()
    together()
    started = time.perf_counter()
    for _ in range(3):
        call()
    return agree(max(1, round(seconds / max(1e-7, (time.perf_counter() - started) / 3))))


def agree(number: int) -> int:
    """The smallest of all ranks' numbers: every rank must repeat a collective equally often."""
    from mpi4py import MPI

    return min(2000, MPI.COMM_WORLD.allreduce(number, MPI.MIN))


def copy_bandwidth(together, mib: int = 64) -> float:
    """Bytes a second, read and written, that this rank copies while all others copy too."""
    source = np.ones(mib << 20, np.uint8)
    target = np.empty_like(source)

    def copy():
        np.copyto(target, source)

    return 2 * source.nbytes / medians([copy], together, rounds=5, seconds=0.05)[0]


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
    return f"{name}, {len(os.sched_getaffinity(0))} cores"
