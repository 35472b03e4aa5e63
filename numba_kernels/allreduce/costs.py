"""Predict the time of an allreduce of n bytes over p ranks from a few numbers of the machine.

The textbook's three numbers, for algorithms that send messages:

    alpha   latency, seconds per message
    beta    seconds per byte sent
    gamma   seconds per byte added

A real machine has caches, and MPI libraries change protocol with message size, so a `Machine` keeps
measured curves instead: the seconds of an exchange, an addition, ... of m bytes. If the curves are
the straight lines alpha + beta m and gamma m, the formulas are those of the literature:

    naive                2(p-1) alpha + 2(p-1) n beta + (p-1) n gamma
    tree                 2L alpha + 2L n beta + L n gamma                     L = ceil(log2 p)
    ring                 2(p-1) alpha + 2n(p-1)/p beta + n(p-1)/p gamma
    recursive_doubling   L alpha + L n beta + L n gamma                       L = log2 p
    rabenseifner         2L alpha + 2n(p-1)/p beta + n(p-1)/p gamma

Sources: Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005); Patarasuk
and Yuan (2009) for the ring. Where an algorithm needs a power of two of ranks, the extra ranks are
folded in (fold.py): one more message of the whole vector before, and one after.

The formulas are not computed from schedules.py, where a ring of 1000 ranks has two million
messages; tests compare the two.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import inf, log2

from .machine import UNMEASURED, Curve, Machine, straight
from .schedules import SCHEDULES, folding

__all__ = [  # the machine is part of what users of costs call
    "UNMEASURED", "Curve", "Machine", "best", "between_nodes", "bus_bandwidth", "measure",
    "predict", "straight",
]  # fmt: skip

Cost = Callable[[float, int, Machine], float]


# Seconds of the messages and additions on the critical path of an allreduce of n bytes.


def naive(n, p, machine):
    return (p - 1) * (2 * machine.message(n) + machine.add(n))


def tree(n, p, machine):
    return (p - 1).bit_length() * (2 * machine.message(n) + machine.add(n))


def ring(n, p, machine):
    return (p - 1) * (2 * machine.exchange(n / p) + machine.add(n / p))


def recursive_doubling(n, p, machine):
    return _levels(p) * (machine.exchange(n) + machine.add(n)) + folded(n, p, machine)


def rabenseifner(n, p, machine):
    halves = [n / 2**k for k in range(1, 1 + _levels(p))]
    return sum(2 * machine.exchange(m) + machine.add(m) for m in halves) + folded(n, p, machine)


def folded(n, p, machine):
    return 2 * machine.message(n) + machine.add(n) if folding(p)[1] else 0.0


def pairwise(n, p, machine):
    return ring(n, p, machine)


def _levels(p: int) -> int:
    """log2 of the ranks that remain when the extra ones are folded in."""
    return folding(p)[0].bit_length() - 1


def shared_memory(n, p, machine):
    """In place. Measured with `machine.ranks` ranks; memory traffic grows in proportion to p."""
    return machine.window(n) * p / machine.ranks


def staged(n, p, machine):
    """The shared_memory algorithm for an ordinary array."""
    return machine.staged(n) * p / machine.ranks


def two_level(n, p, machine):
    """The faster of its two ways, see `between_nodes`."""
    nodes = machine.nodes if machine.nodes and p == machine.ranks else p // machine.per_node
    short = machine.leaders is not None and n <= machine.leaders.sizes[-1]
    return min(_ways(n, nodes, machine, short).values())


def _ways(n, nodes, machine, short):
    """Return {way: seconds} of two_level.py; `short`: the leaders can take the vector."""
    lanes, q = _of_lanes(machine), machine.per_node
    # Half an allreduce within the node before the messages, half after.
    inside = machine.call + machine.inside(n) if machine.inside else 0.0
    ways = {name: inside + predict(name, n / q, nodes, lanes) for name in SAME_BITS}
    if machine.leaders and short:
        alone = replace(machine, exchange=machine.single, message=machine.single)
        ways["leaders"] = machine.leaders(n) + predict("recursive_doubling", n, nodes, alone)
    return ways


def _of_lanes(machine: Machine) -> Machine:
    """The machine as lanes find it: all use the network at the same time."""
    if machine.lane is None:
        return machine
    return replace(machine, message=machine.lane, exchange=machine.lane)


def mpi(n, p, machine):
    """As measured, scaled by log2 p, the fewest rounds possible; the algorithm is unknown."""
    return machine.library(n) * log2(p) / log2(machine.ranks)


_all = (
    naive, tree, ring, recursive_doubling, rabenseifner, shared_memory, staged, two_level, mpi,
    pairwise,
)  # fmt: skip
COSTS: dict[str, Cost] = {cost.__name__: cost for cost in _all}
BY_MESSAGES = tuple(SCHEDULES)
CLEARLY = 1.3  # as fast must lanes be to replace the leaders
SAME_BITS = ("recursive_doubling", "rabenseifner", "pairwise")  # as two_level.py uses them


def predict(algorithm: str, nbytes: float, ranks: int, machine: Machine = UNMEASURED) -> float:
    """Return the seconds that `algorithm` should take to allreduce `nbytes` over `ranks` ranks.

    `algorithm` is a key of `COSTS` ("shared_memory" in place, "staged" for ordinary arrays);
    `machine` comes from `measure(team)`, or is the textbook's: `straight(alpha, beta, gamma)`.

    Raises:
        ValueError: there is no formula for `algorithm`, or `machine` lacks the measurement for it.
    """
    if algorithm not in COSTS:
        raise ValueError(f"no cost formula for {algorithm!r}; choose one of {', '.join(COSTS)}")
    if ranks == 1:
        return 0.0
    needed = {
        "shared_memory": machine.window, "staged": machine.staged, "mpi": machine.library,
    }  # fmt: skip
    if needed.get(algorithm, machine) is None:
        raise ValueError(f"the cost of {algorithm} is unknown; call costs.measure(team) first")
    called = machine.call if algorithm in (*BY_MESSAGES, *SAME_BITS) else 0.0
    return called + COSTS[algorithm](nbytes, int(ranks), machine)


@lru_cache(maxsize=10_000)
def between_nodes(nbytes: float, nodes: int, machine: Machine, short: bool) -> str:
    """Return how two_level reduces `nbytes`: "leaders", or one of SAME_BITS for the lanes.

    `short`: the vector is short enough for the leaders.
    """
    ways = _ways(nbytes, nodes, machine, short)
    fastest = min(ways, key=ways.__getitem__)
    # Short times are noisy. Where the lanes gain, they gain a factor of about their number.
    return "leaders" if ways.get("leaders", inf) < CLEARLY * ways[fastest] else fastest


@lru_cache(maxsize=10_000)
def best(nbytes: float, ranks: int, machine: Machine) -> str:
    """Return the algorithm that should be the fastest if not all ranks share memory.

    "auto" takes two_level always, as its bits don't depend on measured times.
    """
    names = [*BY_MESSAGES]
    if machine.library:
        names.append("mpi")
    if 1 < machine.per_node < ranks:
        names.append("two_level")
    return min(names, key=lambda name: predict(name, nbytes, ranks, machine))


def measure(team) -> Machine:
    """Measure messages, additions and reductions on `team` (measure.py). Collective, below 2 s."""
    from .measure import measure  # here, because predictions need neither Numba nor MPI

    return measure(team)


def bus_bandwidth(nbytes: float, ranks: int, seconds: float) -> float:
    """Return the bytes per second on each rank's link if the allreduce sent the minimum."""
    return nbytes / seconds * 2 * (ranks - 1) / ranks
