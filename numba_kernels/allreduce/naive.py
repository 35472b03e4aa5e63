"""Naive allreduce: gather all vectors on rank 0, add them there, send the result back.

    1 ---x1--.           .--sum--> 1
    2 ---x2---+--> 0: + -+--sum--> 2        one after the other, through rank 0's single link
    3 ---x3--'           '--sum--> 3

Cost: 2(p-1) alpha + 2(p-1) n beta + (p-1) n gamma. It grows linearly with p: a single parameter
server has the same bottleneck, so real libraries avoid it. It is here to learn from and to test
the others against.
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

    while words[AT] < ranks - 1:  # gather and add, in the order of ranks
        peer = words[AT] + 1
        done = exchange(link, nothing, -1, incoming, peer)
        if done != READY:
            return done
        combine(op, x, incoming)
        words[AT] += 1
        if words[AT] == ranks - 1:
            divide(x, divisor)
    while words[AT] < 2 * (ranks - 1):  # send the result back
        done = exchange(link, x, words[AT] - ranks + 2, nothing, -1)
        if done != READY:
            return done
        words[AT] += 1
    return READY
