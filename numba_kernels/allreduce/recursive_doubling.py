"""Recursive doubling: in round k, exchange the whole vector with the rank 2^k away, and add.

    place    0    1    2    3    4    5    6    7
    round 0  0<-->1    2<-->3    4<-->5    6<-->7      each rank has the sum of 2
    round 1  0<------->2    4<------->6                ... of 4 (1 and 3, 5 and 7 likewise)
    round 2  0<----------------->4                     ... of all 8 (and so on)

Of two partners, one computes a + b and the other b + a. These have the same bits, so all ranks end
with the same bits.

Cost: L alpha + L n beta + L n gamma with L = log2 p; folding (fold.py) allows any number of ranks.
No algorithm needs fewer rounds, so it is the best for short vectors; but the whole vector travels
L times. Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), section 4.4.
"""

from .fold import folded
from .steps import ADDS, ENDS, Step, Steps


def steps(rank: int, ranks: int) -> Steps:
    return folded(rank, ranks, lambda *places: doubling(*places, farthest_first=False))


def farthest_first(rank: int, ranks: int) -> Steps:
    """The same in the opposite order of rounds, which adds in the order of rabenseifner.py.

    So the bits of a result do not depend on which of the two made it.
    """
    return folded(rank, ranks, lambda *places: doubling(*places, farthest_first=True))


def doubling(place: int, group: int, farthest_first: bool) -> Steps:
    distances = [1 << k for k in range(group.bit_length() - 1)]
    for distance in reversed(distances) if farthest_first else distances:
        last = distance == (1 if farthest_first else group // 2)
        yield Step(place ^ distance, place ^ distance, ENDS if last else ADDS)
