"""What an allreduce of n bytes over p ranks must cost, from a few numbers of the machine.

The textbook's three, for what goes by messages:

    alpha   latency, seconds a message
    beta    seconds a byte sent
    gamma   seconds a byte added

A real machine has caches, and MPI libraries change protocol with the size, so a `Machine` keeps
measured curves: seconds of one exchange, of one addition, ... of m bytes. With the straight lines
alpha + beta m and gamma m in their place, these are the formulas of the literature:

    naive                2(p-1) alpha + 2(p-1) n beta + (p-1) n gamma
    tree                 2L alpha + 2L n beta + L n gamma                     L = ceil(log2 p)
    ring                 2(p-1) alpha + 2n(p-1)/p beta + n(p-1)/p gamma
    recursive_doubling   L alpha + L n beta + L n gamma                       L = log2 p
    rabenseifner         2L alpha + 2n(p-1)/p beta + n(p-1)/p gamma

Sources: Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005); Patarasuk
and Yuan (2009) for the ring. Where an algorithm needs a power of two of ranks, the others are
folded in (fold.py): one more message of the whole vector before, and one after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import ceil, floor, log2

from .machine import UNMEASURED, Curve, Machine, straight

__all__ = [  # the machine is part of what users of costs call
    "UNMEASURED", "Curve", "Machine", "best", "between", "between_nodes", "bus_bandwidth", "choose",
    "measure", "predict", "straight",
]  # fmt: skip

Cost = Callable[[float, int, Machine], float]


# Seconds of the messages and additions on the longest way through an allreduce of n bytes.


def naive(n, p, machine):
    return (p - 1) * (2 * machine.message(n) + machine.add(n))


def tree(n, p, machine):
    return ceil(log2(p)) * (2 * machine.message(n) + machine.add(n))


def ring(n, p, machine):
    return (p - 1) * (2 * machine.exchange(n / p) + machine.add(n / p))


def recursive_doubling(n, p, machine):
    group = 2 ** floor(log2(p))
    return log2(group) * (machine.exchange(n) + machine.add(n)) + folded(n, p, machine)


def rabenseifner(n, p, machine):
    group = 2 ** floor(log2(p))
    halves = [n / 2**k for k in range(1, 1 + round(log2(group)))]
    return sum(2 * machine.exchange(m) + machine.add(m) for m in halves) + folded(n, p, machine)


def folded(n, p, machine):
    return 0.0 if p == 2 ** floor(log2(p)) else 2 * machine.message(n) + machine.add(n)


def shared_memory(n, p, machine):
    """In place. Measured on `ranks` ranks; the traffic of others is in proportion."""
    return machine.window(n) * p / machine.ranks


def staged(n, p, machine):
    """What shared_memory takes for an ordinary array."""
    return machine.staged(n) * p / machine.ranks


def two_level(n, p, machine):
    """As far as nodes are alike: half an allreduce in the node before, and half after."""
    q = machine.per_node
    inside = machine.call + machine.inside(n) if machine.inside else 0.0
    return inside + predict(between(n, p, machine), n / q, p // q, _of_lanes(machine))


def _of_lanes(machine: Machine) -> Machine:
    """The network as lanes find it, all using it at the same time."""
    if machine.lane is None:
        return machine
    return replace(machine, message=machine.lane, exchange=machine.lane)


def mpi(n, p, machine):
    """The library's secret: as measured, in proportion to the rounds it must take."""
    return machine.library(n) * log2(p) / log2(machine.ranks)


COSTS: dict[str, Cost] = {
    "naive": naive,
    "tree": tree,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "rabenseifner": rabenseifner,
    "shared_memory": shared_memory,
    "staged": staged,
    "two_level": two_level,
    "mpi": mpi,
}
BY_MESSAGES = ("naive", "tree", "ring", "recursive_doubling", "rabenseifner")


def predict(algorithm: str, nbytes: float, ranks: int, machine: Machine = UNMEASURED) -> float:
    """Seconds that `algorithm` should take to allreduce `nbytes` over `ranks` ranks.

    Args:
        algorithm: one of `COSTS`; "shared_memory" is in place, "staged" the same of ordinary arrays
        machine: from `measure(team)`, or the textbook's: `straight(alpha, beta, gamma)`

    Raises ValueError for an algorithm without a formula here, and for one that this machine has
    not been measured for.
    """
    if algorithm not in COSTS:
        raise ValueError(f"no cost formula for {algorithm!r}; one of {', '.join(COSTS)}")
    if ranks == 1:
        return 0.0
    needed = {
        "shared_memory": machine.window, "staged": machine.staged, "mpi": machine.library,
    }  # fmt: skip
    if needed.get(algorithm, machine) is None:
        raise ValueError(f"the cost of {algorithm} is not known before costs.measure(team)")
    called = machine.call if algorithm in BY_MESSAGES else 0.0
    return called + COSTS[algorithm](nbytes, ranks, machine)


@lru_cache(maxsize=10_000)
def between(nbytes: float, ranks: int, machine: Machine) -> str:
    """The best algorithm by messages for the lanes of two_level: n/q bytes over ranks/q nodes."""
    q = machine.per_node
    lanes = _of_lanes(machine)
    return min(BY_MESSAGES, key=lambda name: predict(name, nbytes / q, ranks // q, lanes))


@lru_cache(maxsize=10_000)
def best(nbytes: float, ranks: int, machine: Machine) -> str:
    """What "auto" takes where ranks share no memory, or only some do."""
    names = [*BY_MESSAGES]
    if machine.library:
        names.append("mpi")
    if 1 < machine.per_node < ranks:
        names.append("two_level")
    return min(names, key=lambda name: predict(name, nbytes, ranks, machine))


def measure(team) -> Machine:
    """Measure what collectives of `team` are made of: see measure.py. Collective, below 2 s."""
    from .measure import measure  # which builds on this file

    return measure(team)


def choose(team, nbytes: int) -> str:
    """What "auto" takes for `nbytes` on this team of several nodes: the same on all ranks."""
    return best(nbytes, team.size, team.machine)


def between_nodes(team, nbytes: int) -> str:
    """What two_level takes for its messages."""
    return between(nbytes, team.size, team.machine)


def bus_bandwidth(nbytes: float, ranks: int, seconds: float) -> float:
    """Bytes a second that each rank's link would carry if the allreduce were optimal."""
    return nbytes / seconds * 2 * (ranks - 1) / ranks
