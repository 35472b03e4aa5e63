"""Folding, for algorithms that need a power of two of ranks: fold the extra ranks in, then out.

With r ranks too many, the first 2r ranks form pairs: the even rank of a pair sends its vector to
the odd one and receives the result at the end. A power of two of ranks takes part in between,
numbered by `place`.

    p = 6: r = 2      rank   0 --> 1    2 --> 3    4    5
                      place        0          1    2    3

Cost if p is not a power of two: one more message of the whole vector before, and one after.
"""

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import combine
from .messages import AT, exchange


@compiled
def group_of(ranks):
    """Return the largest power of two that is at most `ranks`."""
    group = 1
    while 2 * group <= ranks:
        group *= 2
    return group


@compiled
def place_of(rank, extra):
    """Return the place of `rank` in the group, or -1 if it is folded in."""
    if rank >= 2 * extra:
        return rank - extra
    return rank // 2 if rank % 2 == 1 else -1


@compiled
def rank_of(place, extra):
    return 2 * place + 1 if place < extra else place + extra


@compiled
def fold(link, rank, extra, x, incoming, op):
    """Exchange number 0: the even rank of each pair sends its vector to the odd one."""
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
    """The last exchange: the odd rank of each pair sends the result to the even one."""
    if rank >= 2 * extra:
        return READY
    if rank % 2 == 1:
        return exchange(link, x, rank - 1, x[:0], -1)
    return exchange(link, x[:0], -1, x, rank + 1)
