"""Benchmark of allreduce between two nodes: ours by `auto` against the MPI library's.

The ranks run as two_nodes.py says, and the rows' name tells how that was. Both sides use the same
transport: what differs is how many messages they send, and what they do within a node. Where the
nodes are only pretended, messages go through the memory of this machine, and the library, which
knows of no nodes then, uses that memory for everything. The limit of these rows is the link: each
node must send every number once, and receive it once.
"""

import os

from benchmarks.two_nodes import BYTES_PER_SECOND, LABEL
from numba_kernels import Team
from numba_kernels.bench.allreduce import ORDINARY, WINDOW, library, measured
from numba_kernels.bench.rows import row
from numba_kernels.bench.timing import shares

BYTES = (8, 512, 4096, 16384, 65536, 2**20, 2**22, 2**24)
FULL_BYTES = tuple(2**k for k in range(3, 27))
NAMES = {WINDOW: "auto (window)", ORDINARY: "auto"}


def rows(seconds: float, full: bool) -> list[dict]:
    team = Team()
    found: list[dict] = []
    for nbytes, left in shares((FULL_BYTES if full else BYTES)[::-1], seconds):
        found[:0] = rows_of(team, nbytes, left)
    return found


def rows_of(team: Team, nbytes: int, seconds: float) -> list[dict]:
    full, again = measured(team, nbytes // 4, seconds)
    what, size = f"allreduce, {os.environ.get(LABEL, 'several nodes')}", {"bytes": nbytes}
    mpi, link = library(), (nbytes, BYTES_PER_SECOND)
    return [
        row(f"{what}, {how}", team.size, size, name, of[ours], mpi, of[mpi], *link)
        for how, of in (("full cycle", full), ("repeated call", again))
        for ours, name in NAMES.items()
    ]
