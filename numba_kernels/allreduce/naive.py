"""Allreduce by one rank that does everything: gather to it, add there, send the result back.

    1 ---x1--.           .--sum--> 1
    2 ---x2---+--> 0: + -+--sum--> 2        one after the other, through rank 0's single door
    3 ---x3--'           '--sum--> 3

Cost: 2(p-1) alpha + 2(p-1) n beta + (p-1) n gamma. It grows with the ranks: this is what a single
parameter server does, and why nobody reduces this way. Good for seeing it, and as the reference.
"""

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import combine, divide
from .messages import AT, exchange


@compiled
def allreduce(link, rank, ranks, x, incoming, op, divisor):
    """Reduce `x` over the ranks in place; `incoming` is scratch of x's length. Resumable."""
    words = link.words
    nothing = x[:0]
    if rank > 0:
        if words[AT] == 0:
            done = exchange(link, x, 0, nothing, -1)
            if done != READY:
                return done
            words[AT] = 1
        return exchange(link, nothing, -1, x, 0)

    while words[AT] < ranks - 1:  # collect, in the order of ranks
        peer = words[AT] + 1
        done = exchange(link, nothing, -1, incoming, peer)
        if done != READY:
            return done
        combine(op, x, incoming)
        words[AT] += 1
        if words[AT] == ranks - 1:
            divide(x, divisor)
    while words[AT] < 2 * (ranks - 1):  # and give back
        done = exchange(link, x, words[AT] - ranks + 2, nothing, -1)
        if done != READY:
            return done
        words[AT] += 1
    return READY
