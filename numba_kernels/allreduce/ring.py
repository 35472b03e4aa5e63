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

from .steps import ADDS, COPIES, ENDS, Step, Steps


def steps(rank: int, ranks: int) -> Steps:
    yield from reduce_scatter(rank, ranks)
    yield from allgather(rank, ranks)


def reduce_scatter(rank: int, ranks: int) -> Steps:
    """Leave the reduction of slice `rank`; the other slices hold partial sums."""
    for step in range(ranks - 1):
        yield around(rank, ranks, rank - 1 - step, ENDS if step == ranks - 2 else ADDS)


def allgather(rank: int, ranks: int) -> Steps:
    """Copy every rank's slice to all ranks."""
    for step in range(ranks - 1):
        yield around(rank, ranks, rank - step, COPIES)


def around(rank: int, ranks: int, slice_: int, does: int) -> Step:
    """Send `slice_` to the right; what arrives is what the left neighbour sends: the one before."""
    mine, theirs = slice_ % ranks, (slice_ - 1) % ranks
    spans = (mine, mine + 1), (theirs, theirs + 1)
    return Step((rank + 1) % ranks, (rank - 1) % ranks, does, *spans, ranks)
