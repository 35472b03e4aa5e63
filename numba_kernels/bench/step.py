"""Benchmark of the fused synchronous step against an MPI allreduce followed by the update."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from ..optimizers import SGD, Adam
from ..step.step import Step
from ..team.team import Team
from .rows import row
from .timing import copy_bandwidth, interleaved, net

SIZES = (100_000, 669_706, 10_000_000)  # the middle one: a network of 784-512-512-10
FULL_SIZES = (10_000, *SIZES, 30_000_000)


def rows(seconds: float, full: bool) -> list[dict]:
    """One row per rule and size; both sides write the gradient first, as backpropagation does."""
    team = Team()
    comm, p = MPI.COMM_WORLD, team.size
    bandwidth = copy_bandwidth(team.barrier)
    cases = [
        (rule, n) for rule in (SGD(0.01), Adam(0.001)) for n in (FULL_SIZES if full else SIZES)
    ]
    found = []
    for rule, n in cases:
        source = np.full(n, 1e-3, np.float32)
        w, g = team.empty(n), team.empty(n)
        w[:] = 1
        step = Step(team, rule, w, g)
        v, h = np.ones(n, np.float32), np.zeros(n, np.float32)
        state = rule.init(n)

        def ours(g=g, source=source, step=step):
            np.copyto(g, source)
            step(0.0, 32)

        def peer(v=v, h=h, source=source, state=state, rule=rule):
            np.copyto(h, source)
            comm.Allreduce(MPI.IN_PLACE, h)
            h.__imul__(1 / p)
            rule.update(v, h, state)

        def only_write(h=h, source=source):
            np.copyto(h, source)

        times = interleaved([ours, peer, only_write], team.barrier, seconds / len(cases)).T
        found.append(
            row(
                "synchronous step",
                p,
                {"parameters": n},
                "fused " + type(rule).__name__.lower(),
                net(times[0], times[2]),
                "MPI Allreduce + update",
                net(times[1], times[2]),
                moved(p, n, rule),
                bandwidth,
            )
        )
    return found


def moved(ranks: int, n: int, rule) -> int:
    """Bytes per step: read p gradients, update w and state, write w to the p - 1 other rows."""
    return (ranks + 2 + 2 * rule.slots + ranks - 1) * 4 * n
