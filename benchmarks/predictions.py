"""Benchmark of every allreduce beside the prediction of costs.py.

In a row the prediction takes the place of the peer, so ratio is predicted / measured, and 1 is
perfect. It uses only `costs.measure`, and predicts repeated calls.
"""

from functools import partial

import numpy as np

from numba_kernels import Team
from numba_kernels.allreduce import costs
from numba_kernels.bench.rows import row
from numba_kernels.bench.timing import copy_bandwidth, interleaved, shares

KIB = tuple(4**k for k in range(2, 8))  # 16 KiB to 16 MiB
WHAT, PREDICTED = "allreduce, repeated call", "costs.predict"


def rows(seconds: float, full: bool) -> list[dict]:
    """Return the rows of one start; with NUMBA_KERNELS_NODE=2 two_level sends messages too."""
    team = Team()
    bandwidth = copy_bandwidth(team.barrier)
    machine = costs.measure(team)
    sizes = [kib * 512 for kib in (*KIB, 2 * KIB[-1])] if full else []  # between those of KIB
    sizes = sorted({*sizes, *(kib * 1024 for kib in KIB)}, reverse=True)
    found: list[dict] = []
    for nbytes, left in shares(sizes, seconds):
        calls = contestants(team, nbytes // 4)
        times = interleaved(list(calls.values()), team.barrier, left).T
        for algorithm, measured in zip(calls, times, strict=True):
            predicted = np.array([costs.predict(algorithm, nbytes, team.size, machine)])
            key = (WHAT, team.size, {"bytes": nbytes}, algorithm)
            moved = 2 * team.size * nbytes
            found.append(row(*key, measured, PREDICTED, predicted, moved, bandwidth))
    return found[::-1]


def contestants(team: Team, n: int) -> dict:
    """Return an allreduce of n float32 for each algorithm available here."""
    # Zeros, whose sums stay zeros; np.full writes them, so that the pages are allocated.
    x = np.full(n, 0, np.float32)
    names = [*costs.BY_MESSAGES, "two_level", "mpi"]
    calls = {name: partial(team.allreduce, x, algorithm=name) for name in names}
    if team.single_node:
        calls["staged"] = partial(team.allreduce, x, algorithm="shared_memory")
        calls["shared_memory"] = partial(team.allreduce, team.empty(n), algorithm="shared_memory")
    return calls
