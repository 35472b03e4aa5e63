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

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import combine, divide
from .fold import fold, group_of, place_of, rank_of, unfold
from .messages import AT, exchange


@compiled
def allreduce(link, rank, ranks, x, incoming, op, divisor):
    """Reduce `x` over the ranks in place; `incoming` is scratch of x's length. Resumable."""
    return _double(link, rank, ranks, x, incoming, op, divisor, False)


@compiled
def farthest_first(link, rank, ranks, x, incoming, op, divisor):
    """The same in the opposite order of rounds, which adds in the order of rabenseifner.py.

    So the bits of a result do not depend on which of the two made it.
    """
    return _double(link, rank, ranks, x, incoming, op, divisor, True)


@compiled
def _double(link, rank, ranks, x, incoming, op, divisor, reverse):
    words = link.words
    group = group_of(ranks)
    extra = ranks - group
    done = fold(link, rank, extra, x, incoming, op)
    if done != READY:
        return done
    place = place_of(rank, extra)
    if place >= 0:
        theirs = incoming[: x.size]
        while 1 << (words[AT] - 1) < group:
            distance = group >> words[AT] if reverse else 1 << (words[AT] - 1)
            partner = rank_of(place ^ distance, extra)
            done = exchange(link, x, partner, theirs, partner)
            if done != READY:
                return done
            combine(op, x, theirs)
            words[AT] += 1
            if 1 << (words[AT] - 1) == group:
                divide(x, divisor)
    return unfold(link, rank, extra, x)
