"""Binomial tree: allreduce up and down it, and broadcast, which is the way down alone.

    up                               down
    0 <--- 1      2 <--- 3           0 -----------> 2
    0 <---------- 2                  0 ---> 1       2 ---> 3

In round k, ranks 2^k apart exchange: half of the ranks still active send their sum and then wait.
It works for any number of ranks: a partner that does not exist is skipped.

Cost: 2L alpha + 2L n beta + L n gamma with L = ceil(log2 p). Few messages, so it is good when
latency dominates; but the whole vector travels L times each way.
"""

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import combine, divide
from .messages import AT, exchange


@compiled
def rounds(ranks):
    """ceil(log2(ranks))"""
    number = 0
    while 1 << number < ranks:
        number += 1
    return number


@compiled
def allreduce(link, rank, ranks, x, incoming, op, divisor):
    """Reduce `x` over the ranks in place; `incoming` is scratch of x's length. Resumable."""
    words = link.words
    nothing = x[:0]
    last = rounds(ranks)
    while words[AT] < last:
        k = words[AT]
        if rank % (1 << k) == 0:  # this rank has not sent its sum yet
            if rank & (1 << k):
                done = exchange(link, x, rank - (1 << k), nothing, -1)
                if done != READY:
                    return done
            elif rank + (1 << k) < ranks:
                done = exchange(link, nothing, -1, incoming, rank + (1 << k))
                if done != READY:
                    return done
                combine(op, x, incoming)
        words[AT] += 1
        if words[AT] == last and rank == 0:
            divide(x, divisor)
    return down(link, rank, ranks, x, 0, last)


@compiled
def down(link, rank, ranks, x, root, first):
    """Broadcast `x` from `root`, in exchanges counted from `first`. Resumable."""
    words = link.words
    nothing = x[:0]
    last = rounds(ranks)
    place = (rank - root + ranks) % ranks  # the tree, as if the root were rank 0
    while words[AT] < first + last:
        k = last - 1 - (words[AT] - first)
        done = READY
        if place % (1 << (k + 1)) == 0:  # this rank has x already
            if place + (1 << k) < ranks:
                done = exchange(link, x, (rank + (1 << k)) % ranks, nothing, -1)
        elif place % (1 << k) == 0:
            done = exchange(link, nothing, -1, x, (rank - (1 << k) + ranks) % ranks)
        if done != READY:
            return done
        words[AT] += 1
    return READY
