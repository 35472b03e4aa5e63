"""Allreduce in place, in memory that all ranks of the node share: nothing is sent at all.

Row i of `rows` is rank i's vector. Rank r reduces slice r of every row and writes the result back
into slice r of every row.

              slice 0     slice 1     slice 2
    row 0    [ rank 0  |  rank 1   |  rank 2  ]
    row 1    [ reads & |  reads &  |  reads & ]      barrier, this picture, barrier
    row 2    [ writes  |  writes   |  writes  ]

Cost: two barriers + 2 p n bytes through memory, shared out over the ranks.

Why in place: a cache line that one core wrote and another only reads has to be asked back before
its owner can write it again. The rank that reads a peer's line here also writes it, so that line
changes hands once each way and no more.
"""

from ..board import READY, all_arrived, arrive
from ..compile import compiled
from .elementwise import SUM, bounds, combine, scale

TILE = 2048  # elements: a tile of the result stays in the first-level cache


@compiled
def allreduce(board, rank, call, rows, first, n, op, factor, tile, at, spins, patience):
    """Reduce elements [first, first + n) of every row, in place. Resumable through `at[0]`."""
    ranks = board.shape[0]
    if at[0] == 0:
        arrive(board, rank, call, n)
        at[0] = 1
    if at[0] == 1:
        done = all_arrived(board, rank, spins, patience)
        if done != READY:
            return done
        low, high = bounds(n, ranks, rank)
        if ranks == 2 and op == SUM:
            add_two(
                rows[0, first + low : first + high], rows[1, first + low : first + high], factor
            )
        else:
            for start in range(first + low, first + high, TILE):
                end = min(start + TILE, first + high)
                result = tile[: end - start]
                result[:] = rows[0, start:end]
                for peer in range(1, ranks):
                    combine(op, result, rows[peer, start:end])
                scale(result, factor)
                for peer in range(ranks):
                    rows[peer, start:end] = result
        arrive(board, rank, call, n)
        at[0] = 2
    return all_arrived(board, rank, spins, patience)


@compiled
def add_two(a, b, factor):
    """Both become factor * (a + b): two ranks need no tile."""
    f = a.dtype.type(factor)
    for i in range(a.size):
        total = (a[i] + b[i]) * f
        a[i] = total
        b[i] = total
