"""Ring allreduce: every rank exchanges with its two neighbours only.

The vector is cut into p slices. In every step each rank sends one slice to the right while it
receives another from the left.

    p = 3, which slice arrives where (+: added, =: copied)

                 rank 0      rank 1      rank 2
    step 0       +slice 1    +slice 2    +slice 0      reduce-scatter: afterwards
    step 1       +slice 0    +slice 1    +slice 2      rank r holds slice r, complete
    step 2       =slice 2    =slice 0    =slice 1      allgather
    step 3       =slice 1    =slice 2    =slice 0

Cost: 2(p-1) alpha + 2n(p-1)/p beta + n(p-1)/p gamma. No rank sends more than 2n bytes however many
ranks there are, which is optimal (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009); the
price is a latency that grows linearly with p.
"""

import numpy as np

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import bounds, combine, divide
from .messages import AT, exchange


@compiled
def allreduce(link, rank, ranks, x, incoming, op, divisor):
    """Reduce `x` over the ranks in place; `incoming` is scratch for one slice.

    It may return WAIT; called again, it goes on where it was (see messages.py).
    """
    if link.words[AT] < ranks - 1:
        done = reduce_scatter(link, rank, ranks, x, incoming, op, divisor)
        if done != READY:
            return done
    return allgather(link, rank, ranks, x, slices(x.size, ranks), ranks - 1)


@compiled
def reduce_scatter(link, rank, ranks, x, incoming, op, divisor):
    """Leave in slice `rank` of `x` its reduction over all ranks; other slices hold partial sums."""
    words = link.words
    right, left = (rank + 1) % ranks, (rank - 1 + ranks) % ranks
    while words[AT] < ranks - 1:
        step = words[AT]
        first, last = bounds(x.size, ranks, (rank - 1 - step + 2 * ranks) % ranks)
        outgoing = x[first:last]
        first, last = bounds(x.size, ranks, (rank - 2 - step + 2 * ranks) % ranks)
        mine = x[first:last]
        done = exchange(link, outgoing, right, incoming[: mine.size], left)
        if done != READY:
            return done
        combine(op, mine, incoming[: mine.size])
        words[AT] += 1
        if words[AT] == ranks - 1:
            divide(mine, divisor)
    return READY


@compiled
def slices(n, ranks):
    """Return edges, (ranks + 1,): slice i of n elements is [edges[i], edges[i + 1])."""
    edges = np.empty(ranks + 1, np.int64)
    for i in range(ranks):
        edges[i], edges[i + 1] = bounds(n, ranks, i)
    return edges


@compiled
def allgather(link, rank, ranks, x, edges, first_step):
    """Fill `x` with every rank's slice; slice i is [edges[i], edges[i + 1]), lengths may differ."""
    words = link.words
    right, left = (rank + 1) % ranks, (rank - 1 + ranks) % ranks
    while words[AT] < first_step + ranks - 1:
        step = words[AT] - first_step
        mine, theirs = (rank - step + ranks) % ranks, (left - step + ranks) % ranks
        outgoing = x[edges[mine] : edges[mine + 1]]
        done = exchange(link, outgoing, right, x[edges[theirs] : edges[theirs + 1]], left)
        if done != READY:
            return done
        words[AT] += 1
    return READY
