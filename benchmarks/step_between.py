"""Benchmark of the fused step between two nodes, against MPI's allreduce and the update.

The contestants are those of `bench step`. The ranks run as two_nodes.py says, and the rows' name
tells how that was. The limit of these rows is the link: each node must send every number once.
"""

import os

from benchmarks.two_nodes import BYTES_PER_SECOND, LABEL
from numba_kernels import Team
from numba_kernels.bench.rows import row
from numba_kernels.bench.step import contestants, name_of
from numba_kernels.bench.timing import interleaved, net
from numba_kernels.optimizers import SGD, Adam

SIZES = (100_000, 1_000_000, 10_000_000)


def rows(seconds: float, full: bool) -> list[dict]:
    """One row per rule and size; a step of the longest takes half a second."""
    team = Team()
    cases = [(rule, n) for n in SIZES for rule in (SGD(0.01), Adam(0.001))]
    found = []
    for rule, n in cases:
        calls = contestants(team, rule, n)
        ours, peer, only_write = interleaved(calls, team.barrier, seconds / len(cases)).T
        what = f"synchronous step, {os.environ.get(LABEL, 'several nodes')}"
        key = (what, team.size, {"parameters": n}, f"fused {name_of(rule)}")
        theirs = ("MPI Allreduce + update", net(peer, only_write))
        found.append(row(*key, net(ours, only_write), *theirs, 4 * n, BYTES_PER_SECOND))
    return found
