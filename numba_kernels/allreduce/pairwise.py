"""Pairwise exchange: each rank receives its slice from every other one, adds, and sends the sum.

    slice 0 is rank 0's    rank 0 <-- slice 0 of 1, 2, 3, then adds      --> the sum to 1, 2, 3
    slice 1 is rank 1's    rank 1 <-- slice 1 of 0, 2, 3, then adds      --> the sum to 0, 2, 3
                           ...         round k: send to rank + k, receive from rank - k

Cost: 2(p-1) alpha + 2n(p-1)/p beta + n(p-1)/p gamma, as the ring, for any number of ranks. The ring
adds each slice in another order. Here a rank has all parts of its slice at once, and adds them in
the order of rabenseifner.py, so that "auto" can choose either and give the same bits.
"""

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import bounds, combine, copy, divide
from .messages import AT, exchange


def scratch_of(n: int, ranks: int) -> int:
    """Return how many elements of scratch the kernel needs."""
    return n + 32 * ranks  # slices are whole cache lines


@compiled
def allreduce(link, rank, ranks, x, incoming, op, divisor):
    """Reduce `x` over the ranks in place; `incoming` is scratch of `scratch_of`. Resumable."""
    words = link.words
    first, last = bounds(x.size, ranks, rank)
    mine = x[first:last]
    while words[AT] < 2 * (ranks - 1):
        distance = 1 + words[AT] % (ranks - 1)
        to, source = (rank + distance) % ranks, (rank - distance + ranks) % ranks
        if words[AT] < ranks - 1:
            first, last = bounds(x.size, ranks, to)
            done = exchange(
                link, x[first:last], to, slice_from(mine, incoming, rank, source), source
            )
        else:
            first, last = bounds(x.size, ranks, source)
            done = exchange(link, mine, to, x[first:last], source)
        if done != READY:
            return done
        words[AT] += 1
        if words[AT] == ranks - 1:
            add_up(mine, incoming, rank, ranks, op)
            divide(mine, divisor)
    return READY


@compiled
def group_of(ranks):
    """Return the largest power of two that is at most `ranks`."""
    group = 1
    while 2 * group <= ranks:
        group *= 2
    return group


@compiled
def rank_of(place, extra):
    return 2 * place + 1 if place < extra else place + extra


@compiled
def slice_from(mine, incoming, rank, source):
    """Return where `source`'s part of this rank's slice lies."""
    if source == rank:
        return mine
    start = mine.size * (source if source < rank else source - 1)
    return incoming[start : start + mine.size]


@compiled
def add_up(mine, incoming, rank, ranks, op):
    """Add all parts to `mine`: extra ranks first, as fold.py does, then those farthest apart."""
    group = group_of(ranks)
    extra = ranks - group
    for pair in range(extra):
        combine(
            op,
            slice_from(mine, incoming, rank, 2 * pair + 1),
            slice_from(mine, incoming, rank, 2 * pair),
        )
    distance = group // 2
    while distance > 0:
        for place in range(distance):
            combine(
                op,
                slice_from(mine, incoming, rank, rank_of(place, extra)),
                slice_from(mine, incoming, rank, rank_of(place + distance, extra)),
            )
        distance //= 2
    total = slice_from(mine, incoming, rank, rank_of(0, extra))
    if total.ctypes.data != mine.ctypes.data:
        copy(mine, total)
