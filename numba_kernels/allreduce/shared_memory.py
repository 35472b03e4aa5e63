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

from ..board import LENGTHS, READY, all_arrived, arrive
from ..compile import compiled
from ..node import AT, PATIENCE, RANK, SPINS, TILE, board_of, locate, row_of, tile_like
from .elementwise import SUM, bounds, combine, copy, scale

ELSEWHERE = 2  # what is returned, at once and on this rank only, if x lies in no window


@compiled
def allreduce(node, call, x, op, factor):
    """Reduce `x`, which lies in this rank's row of a window, in place. Resumable."""
    first, stride, place = locate(node, x)
    if first == 0:
        return ELSEWHERE
    board, rank, length = board_of(node), node[RANK], x.size + LENGTHS * place
    if node[AT] == 0:
        arrive(board, rank, call, length)
        node[AT] = 1
    if node[AT] == 1:
        done = all_arrived(board, rank, node[SPINS], node[PATIENCE])
        if done != READY:
            return done
        low, high = bounds(x.size, board.shape[0], rank)
        if board.shape[0] == 2 and op == SUM:
            a, b = row_of(first, x), row_of(first + stride, x)
            add_two(a[low:high], b[low:high], factor)
        else:
            reduce_slice(
                first, stride, board.shape[0], x, low, high, op, factor, tile_like(node, x)
            )
        arrive(board, rank, call, length)
        node[AT] = 2
    return all_arrived(board, rank, node[SPINS], node[PATIENCE])


@compiled
def reduce_slice(first, stride, ranks, x, low, high, op, factor, tile):
    """Tile by tile: read the slice of every row, write the result to every row."""
    for start in range(low, high, TILE):
        end = min(start + TILE, high)
        result = tile[: end - start]
        copy(result, row_of(first, x)[start:end])
        for peer in range(1, ranks):
            combine(op, result, row_of(first + peer * stride, x)[start:end])
        scale(result, factor)
        for peer in range(ranks):
            copy(row_of(first + peer * stride, x)[start:end], result)


@compiled
def add_two(a, b, factor):
    """Both become factor * (a + b): two ranks need no tile."""
    f = a.dtype.type(factor)
    for i in range(a.size):
        total = (a[i] + b[i]) * f
        a[i] = total
        b[i] = total
