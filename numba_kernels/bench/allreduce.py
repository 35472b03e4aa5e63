"""Benchmark of allreduce: ours against the MPI library's.

Ours is measured in the node's window, on ordinary arrays by `auto`, and by messages. All are
compared in full cycles (timing.py); the usual measurement, a repeated call, is listed too.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from mpi4py import MPI

from ..team.team import Team
from .rows import BY_MESSAGES, row
from .timing import copy_bandwidth, interleaved, net, shares

KIB = (1, 16, 64, 256, 1024, 4096, 16384, 65536)
FULL_KIB = tuple(2**k for k in range(17))
MESSAGES = ("ring", "rabenseifner", "recursive_doubling")
MESSAGES_KIB = (64, 16384)  # smallest and largest size
WINDOW, ORDINARY = "shared_memory", "auto"


def rows(seconds: float, full: bool) -> list[dict]:
    team = Team()
    bandwidth = copy_bandwidth(team.barrier)
    sizes = FULL_KIB if full else KIB
    found: list[dict] = []
    # The largest first: if they exceed their share of the time, smaller sizes get less.
    for kib, left in shares(sizes[::-1], seconds):
        found[:0] = rows_of(team, kib, left, bandwidth)
    return found


def rows_of(team: Team, kib: int, seconds: float, bandwidth: float) -> list[dict]:
    n, mpi = kib * 256, library()
    names = MESSAGES if MESSAGES_KIB[0] <= kib <= MESSAGES_KIB[1] else ()
    full, again = measured(team, n, seconds, names)

    def pair(what, ours, of):
        moved = 2 * team.size * n * 4  # every rank's vector is read once and written once
        return row(
            what, team.size, {"bytes": n * 4}, ours, of[ours], mpi, of[mpi], moved, bandwidth
        )

    return [
        pair("allreduce, full cycle", WINDOW, full),
        pair("allreduce, repeated call", WINDOW, again),
        pair("allreduce of ordinary arrays, full cycle", ORDINARY, full),
        pair("allreduce of ordinary arrays, repeated call", ORDINARY, again),
        *(pair(BY_MESSAGES, name, full) for name in MESSAGES if name in full),
    ]


def library() -> str:
    """The name of the MPI library's contestant."""
    return f"{MPI.get_vendor()[0]} Allreduce"


def measured(team: Team, n: int, seconds: float, names: Sequence[str] = ()) -> tuple[dict, dict]:
    """Time reductions of n elements: {contestant: seconds} of full cycles, and of repeated calls.

    Contestants are ours in the window and by `auto`, and the MPI library; in full cycles only, also
    our algorithms of these `names`.
    """
    # Zeros, so that sums stay the same in repeated calls; np.full touches the pages.
    source, private, sink = (np.full(n, 0.0, np.float32) for _ in range(3))
    window = team.empty(n)
    contestants = {
        WINDOW: (window, team.allreduce),
        ORDINARY: (private, team.allreduce),
        library(): (private, partial(MPI.COMM_WORLD.Allreduce, MPI.IN_PLACE)),
    }
    repeated = {name: partial(reduce, x) for name, (x, reduce) in contestants.items()}
    for name in names:
        contestants[name] = (private, partial(team.allreduce, algorithm=name))
    for name, (x, reduce) in contestants.items():
        check(team, name, x, reduce)

    def cycle(x, reduce):
        np.copyto(x, source)
        reduce(x)
        np.copyto(sink, x)

    cycles = {name: partial(cycle, x, reduce) for name, (x, reduce) in contestants.items()}
    # For each memory separately: its place makes a difference of 5% of a cycle at 16 MiB.
    nothing = [partial(cycle, x, len) for x in (window, private)]
    calls = [*nothing, *cycles.values(), *repeated.values()]
    in_window, in_private, *times = interleaved(calls, team.barrier, seconds).T  # (rounds,) each
    again = dict(zip(repeated, times[len(cycles) :], strict=True))
    full = {
        name: net(
            t,
            in_window if name == WINDOW else in_private,
            least=float(np.median(again[name])) if name in again else 0.0,
        )
        for name, t in zip(cycles, times, strict=False)
    }
    return full, again


def check(team: Team, name: str, x: np.ndarray, reduce) -> None:
    """Check that a contestant sums correctly, and set `x` to zeros afterwards."""
    x[:] = team.rank + 1
    reduce(x)
    if not (x == team.size * (team.size + 1) / 2).all():
        raise RuntimeError(f"{name} on {team.size} ranks gave a wrong sum of {x.nbytes} bytes")
    x[:] = 0
    team.barrier()
