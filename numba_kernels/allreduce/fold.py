"""For algorithms that need a power of two of ranks: fold the others in before, and out after.

With r ranks too many, the first 2r pair up: the even one of a pair hands its vector to the odd one
and is told the result at the end. What is left is a power of two of ranks, numbered by `place`.

    p = 6: r = 2      rank   0 --> 1    2 --> 3    4    5
                      place        0          1    2    3

Cost: one more message of the whole vector before and one after, for p that is no power of two.
"""

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import combine
from .messages import AT, exchange


@compiled
def group_of(ranks):
    """The largest power of two that is not above `ranks`."""
    group = 1
    while 2 * group <= ranks:
        group *= 2
    return group


@compiled
def place_of(rank, extra):
    """The number of `rank` in the group, -1 if it is folded away."""
    if rank >= 2 * extra:
        return rank - extra
    return rank // 2 if rank % 2 == 1 else -1


@compiled
def rank_of(place, extra):
    """The rank with this number in the group."""
    return 2 * place + 1 if place < extra else place + extra


@compiled
def fold(link, rank, extra, x, incoming, op):
    """Exchange number 0: even ranks of the pairs hand over."""
    words = link.words
    if words[AT] > 0:
        return READY
    done = READY
    if rank < 2 * extra:
        if rank % 2 == 0:
            done = exchange(link, x, rank + 1, x[:0], -1)
        else:
            done = exchange(link, x[:0], -1, incoming[: x.size], rank - 1)
            if done == READY:
                combine(op, x, incoming[: x.size])
    if done == READY:
        words[AT] = 1
    return done


@compiled
def unfold(link, rank, extra, x):
    """The last exchange: odd ranks of the pairs give the result back."""
    if rank >= 2 * extra:
        return READY
    if rank % 2 == 1:
        return exchange(link, x, rank - 1, x[:0], -1)
    return exchange(link, x[:0], -1, x, rank + 1)
