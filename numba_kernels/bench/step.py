"""Benchmark of the fused synchronous step against an MPI allreduce followed by the update."""

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
    bandwidth = copy_bandwidth(team.barrier)
    cases = [
        (rule, n) for rule in (SGD(0.01), Adam(0.001)) for n in (FULL_SIZES if full else SIZES)
    ]
    found = []
    for rule, n in cases:
        calls = contestants(team, rule, n)
        ours, peer, only_write = interleaved(calls, team.barrier, seconds / len(cases)).T
        key = ("synchronous step", team.size, {"parameters": n}, f"fused {name_of(rule)}")
        theirs = ("MPI Allreduce + update", net(peer, only_write))
        found.append(
            row(*key, net(ours, only_write), *theirs, moved(team.size, n, rule), bandwidth)
        )
    return found


def name_of(rule) -> str:
    return type(rule).__name__.lower()


def contestants(team: Team, rule, n: int) -> list:
    """Our step, the peer's, and the writing of the gradient that both contain."""
    source = np.full(n, 1e-3, np.float32)
    w, g = team.empty(n), team.empty(n)
    w[:] = 1
    step = Step(team, rule, w, g)
    v, h, state = np.ones(n, np.float32), np.zeros(n, np.float32), rule.init(n)

    def ours():
        np.copyto(g, source)
        step(0.0, 32)

    def peer():
        np.copyto(h, source)
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, h)
        h.__imul__(1 / team.size)
        rule.update(v, h, state)

    return [ours, peer, lambda: np.copyto(h, source)]


def moved(ranks: int, n: int, rule) -> int:
    """Bytes per step: read p gradients, update w and state, write w to the p - 1 other rows."""
    return (ranks + 2 + 2 * rule.slots + ranks - 1) * 4 * n
