"""Binomial tree: allreduce up and down it, and broadcast, which is the way down alone.

    up                               down
    0 <--- 1      2 <--- 3           0 -----------> 2
    0 <---------- 2                  0 ---> 1       2 ---> 3

In round k, ranks 2^k apart exchange: half of the ranks still active send their sum and then wait.
It works for any number of ranks: a partner that does not exist is skipped.

Cost: 2L alpha + 2L n beta + L n gamma with L = ceil(log2 p). Few messages, so it is good when
latency dominates; but the whole vector travels L times each way.
"""

from .steps import ADDS, ENDS, IDLE, Steps, receive, send


def steps(rank: int, ranks: int) -> Steps:
    levels = (ranks - 1).bit_length()
    for distance in (1 << k for k in range(levels)):
        if rank % (2 * distance) == distance:
            yield send(rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < ranks:
            complete = rank == 0 and 2 * distance >= ranks
            yield receive(rank + distance, ENDS if complete else ADDS)
        else:
            yield IDLE
    yield from down(rank, ranks, 0)


def down(rank: int, ranks: int, root: int) -> Steps:
    """The steps of a broadcast from `root`."""
    place = (rank - root) % ranks  # the tree, as if the root were rank 0
    for distance in (1 << k for k in reversed(range((ranks - 1).bit_length()))):
        if place % (2 * distance) == 0 and place + distance < ranks:
            yield send((rank + distance) % ranks)
        elif place % (2 * distance) == distance:
            yield receive((rank - distance) % ranks)
        else:
            yield IDLE
