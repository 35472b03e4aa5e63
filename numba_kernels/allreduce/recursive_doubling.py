"""Allreduce by recursive doubling: in round k, exchange everything with the rank 2^k away, and add.

    place    0    1    2    3    4    5    6    7
    round 0  0<-->1    2<-->3    4<-->5    6<-->7      each now has the sum of 2
    round 1  0<------->2    4<------->6                (1 and 3, 5 and 7 likewise) of 4
    round 2  0<----------------->4                     (and so on) of all 8

Both partners compute a + b and b + a, which are the same bits: so are the results on all ranks.

Cost: L alpha + L n beta + L n gamma with L = log2 p; any number of ranks by folding (fold.py). The
fewest messages there can be, so the best for short vectors; for long ones every byte travels L
times. Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), section 4.4.
"""

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import combine, divide
from .fold import fold, group_of, place_of, rank_of, unfold
from .messages import AT, exchange


@compiled
def allreduce(link, rank, ranks, x, incoming, op, divisor):
    """Reduce `x` over the ranks in place; `incoming` is scratch of x's length. Resumable."""
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
            partner = rank_of(place ^ (1 << (words[AT] - 1)), extra)
            done = exchange(link, x, partner, theirs, partner)
            if done != READY:
                return done
            combine(op, x, theirs)
            words[AT] += 1
            if 1 << (words[AT] - 1) == group:
                divide(x, divisor)
    return unfold(link, rank, extra, x)
