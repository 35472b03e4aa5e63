"""What an allreduce of n bytes over p ranks must cost, from three numbers of the machine.

alpha: latency, seconds a message. beta: seconds a byte sent. gamma: seconds a byte added.
Sources: Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005); Patarasuk
and Yuan (2009) for the ring. Where an algorithm needs a power of two of ranks, the others are
folded in (fold.py): one more message of the whole vector before, and one after.
"""

from collections.abc import Callable
from math import ceil, floor, log2

Cost = Callable[[float, int, float, float, float], float]


def naive(n, p, alpha, beta, gamma):
    return 2 * (p - 1) * alpha + 2 * (p - 1) * n * beta + (p - 1) * n * gamma


def tree(n, p, alpha, beta, gamma):
    rounds = ceil(log2(p))
    return 2 * rounds * alpha + 2 * rounds * n * beta + rounds * n * gamma


def ring(n, p, alpha, beta, gamma):
    return 2 * (p - 1) * alpha + 2 * n * (p - 1) / p * beta + n * (p - 1) / p * gamma


def recursive_doubling(n, p, alpha, beta, gamma):
    group = 2 ** floor(log2(p))
    rounds = log2(group)
    folded = 2 * alpha + 2 * n * beta + n * gamma if group < p else 0
    return rounds * (alpha + n * beta + n * gamma) + folded


def rabenseifner(n, p, alpha, beta, gamma):
    group = 2 ** floor(log2(p))
    part = n * (group - 1) / group
    folded = 2 * alpha + 2 * n * beta + n * gamma if group < p else 0
    return 2 * log2(group) * alpha + 2 * part * beta + part * gamma + folded


COSTS: dict[str, Cost] = {
    "naive": naive,
    "tree": tree,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "rabenseifner": rabenseifner,
}


def predict(algorithm: str, nbytes: float, ranks: int, alpha: float, beta: float, gamma: float):
    """Seconds that `algorithm` should take to allreduce `nbytes` over `ranks` ranks.

    Raises ValueError for an algorithm without a formula here.

    >>> predict("ring", 1e6, 4, alpha=1e-6, beta=1e-9, gamma=0)  # 6 alpha + 1.5e6 beta
    0.001506
    """
    if algorithm not in COSTS:
        raise ValueError(f"no cost formula for {algorithm!r}; one of {', '.join(COSTS)}")
    return COSTS[algorithm](nbytes, ranks, alpha, beta, gamma)


def bus_bandwidth(nbytes: float, ranks: int, seconds: float) -> float:
    """Bytes a second that each rank's link would carry if the allreduce were optimal."""
    return nbytes / seconds * 2 * (ranks - 1) / ranks
