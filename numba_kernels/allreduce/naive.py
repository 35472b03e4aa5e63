"""Naive allreduce: gather all vectors on rank 0, add them there, send the result back.

    1 ---x1--.           .--sum--> 1
    2 ---x2---+--> 0: + -+--sum--> 2        one after the other, through rank 0's single link
    3 ---x3--'           '--sum--> 3

Cost: 2(p-1) alpha + 2(p-1) n beta + (p-1) n gamma. It grows linearly with p: a single parameter
server has the same bottleneck, so real libraries avoid it. It is here to learn from and to test
the others against.
"""

from .steps import ADDS, ENDS, IDLE, Steps, receive, send


def steps(rank: int, ranks: int) -> Steps:
    """Rank 0 adds in the order of ranks."""
    for other in range(1, ranks):
        if rank == 0:
            yield receive(other, ENDS if other == ranks - 1 else ADDS)
        else:
            yield send(0) if rank == other else IDLE
    for other in range(1, ranks):
        if rank == 0:
            yield send(other)
        else:
            yield receive(0) if rank == other else IDLE
