"""Benchmark of allreduce between two nodes: ours by `auto` against the MPI library's.

The ranks run as two_nodes.py says, and the rows' name tells how that was. Both sides use the same
transport: what differs is how many messages they send, and what they do within a node. Where the
nodes are only pretended, messages go through the memory of this machine, and the library, which
knows of no nodes then, uses that memory for everything. The limit of these rows is the link: each
node must send every number once, and receive it once.
"""

import os
from functools import partial

import numpy as np
from mpi4py import MPI

from ..team.team import Team
from .allreduce import check
from .rows import row
from .timing import interleaved, net, shares
from .two_nodes import BYTES_PER_SECOND, LABEL

BYTES = (8, 512, 4096, 16384, 65536, 2**20, 2**22, 2**24)
FULL_BYTES = tuple(2**k for k in range(3, 27))
WINDOW, ORDINARY = "auto (window)", "auto"


def rows(seconds: float, full: bool) -> list[dict]:
    team = Team()
    found: list[dict] = []
    for nbytes, left in shares((FULL_BYTES if full else BYTES)[::-1], seconds):
        found[:0] = rows_of(team, nbytes, left)
    return found


def rows_of(team: Team, nbytes: int, seconds: float) -> list[dict]:
    n = nbytes // 4
    # Zeros, so that sums stay the same in repeated calls; np.full touches the pages.
    source, private, sink = (np.full(n, 0.0, np.float32) for _ in range(3))
    window = team.empty(n)
    mpi = f"{MPI.get_vendor()[0]} Allreduce"
    contestants = {
        WINDOW: (window, team.allreduce),
        ORDINARY: (private, team.allreduce),
        mpi: (private, partial(MPI.COMM_WORLD.Allreduce, MPI.IN_PLACE)),
    }
    for name, (x, reduce) in contestants.items():
        check(team, name, x, reduce)

    def cycle(x, reduce):
        np.copyto(x, source)
        reduce(x)
        np.copyto(sink, x)

    nothing = [partial(cycle, x, len) for x in (window, private)]
    cycles = [partial(cycle, x, reduce) for x, reduce in contestants.values()]
    again = [partial(reduce, x) for x, reduce in contestants.values()]
    times = interleaved([*nothing, *cycles, *again], team.barrier, seconds).T  # (calls, rounds)
    in_window, in_private, *times = times
    empty = {WINDOW: in_window, ORDINARY: in_private, mpi: in_private}
    full, repeated = {}, {}
    for name, whole, alone in zip(contestants, times[:3], times[3:], strict=True):
        full[name] = net(whole, empty[name], least=float(np.median(alone)))
        repeated[name] = alone
    what, size = f"allreduce, {os.environ.get(LABEL, 'several nodes')}", {"bytes": nbytes}
    link = nbytes, BYTES_PER_SECOND
    return [
        row(f"{what}, {how}", team.size, size, ours, of[ours], mpi, of[mpi], *link)
        for how, of in (("full cycle", full), ("repeated call", repeated))
        for ours in (WINDOW, ORDINARY)
    ]
