"""Rabenseifner's allreduce: reduce-scatter by halving, then allgather by doubling.

Halving: in each round a rank sends half of the part it still holds to a partner, receives the
other half from it, and adds. Doubling reverses this: each round exchanges twice as much.

    place 0   [0 1 2 3]  -> keeps [0 1], sends [2 3] to 2  -> keeps [0], sends [1] to 1
    place 1   [0 1 2 3]  -> keeps [0 1], sends [2 3] to 3  -> keeps [1], sends [0] to 0
    place 2   [0 1 2 3]  -> keeps [2 3], sends [0 1] to 0  -> keeps [2], sends [3] to 3
    place 3   [0 1 2 3]  -> keeps [2 3], sends [0 1] to 1  -> keeps [3], sends [2] to 2

Cost: 2L alpha + 2n(p-1)/p beta + n(p-1)/p gamma with L = log2 p: as many bytes as the ring with far
fewer messages; folding (fold.py) allows any number of ranks. Rabenseifner, ICCS 2004; Thakur et al.
(2005), section 4.4.
"""

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import bounds, combine, divide
from .fold import fold, group_of, place_of, rank_of, unfold
from .messages import AT, exchange
from .tree import rounds


@compiled
def held(n, group, place, halvings):
    """Return [first, last), the part that `place` still holds after that many halvings."""
    low, high = 0, group  # in chunks, one per place
    distance = group
    for _ in range(halvings):
        distance //= 2
        if place & distance:
            low += distance
        else:
            high -= distance
    return bounds(n, group, low)[0], bounds(n, group, high - 1)[1]


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
    halvings = rounds(group)
    if place >= 0:
        while words[AT] < 1 + 2 * halvings:
            halving = words[AT] <= halvings
            # How many halvings lead to the parts exchanged in this round.
            level = words[AT] if halving else 2 * halvings + 1 - words[AT]
            distance = group >> level
            partner = rank_of(place ^ distance, extra)
            first, last = held(x.size, group, place, level)
            mine = x[first:last]
            first, last = held(x.size, group, place ^ distance, level)
            theirs = x[first:last]
            if halving:
                arriving = incoming[: mine.size]
                done = exchange(link, theirs, partner, arriving, partner)
            else:
                done = exchange(link, mine, partner, theirs, partner)
            if done != READY:
                return done
            if halving:
                combine(op, mine, arriving)
            if words[AT] == halvings:
                divide(mine, divisor)
            words[AT] += 1
    return unfold(link, rank, extra, x)
