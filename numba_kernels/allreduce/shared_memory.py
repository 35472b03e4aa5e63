"""Allreduce in place, in memory that all ranks of the node share: nothing is sent at all.

Row i is rank i's vector, in a window (`team.empty`). Rank r reduces slice r of every row and writes
the result back into slice r of every row.

              slice 0     slice 1     slice 2
    row 0    [ rank 0  |  rank 1   |  rank 2  ]
    row 1    [ reads & |  reads &  |  reads & ]      barrier, this picture, barrier
    row 2    [ writes  |  writes   |  writes  ]

Cost: two barriers + 2 p n bytes through memory, shared out over the ranks.

Why in place: a cache line that one core wrote and another only reads has to be asked back before
its owner can write it again. The rank that reads a peer's line here also writes it, so that line
changes hands once each way and no more. Vectors that lie in no window: staged.py.
"""

from ..jit.compile import compiled
from ..jit.halves import narrow, widen
from ..shared.board import LENGTHS, READY, all_arrived, arrive
from ..shared.node_array import AT, PATIENCE, RANK, SPINS, TILE, board_of, locate, row_of, tile_like
from .elementwise import SUM, bounds, combine, convert, copy, divide, quotient

ELSEWHERE = 2  # what is returned, at once and on this rank only, if x lies in no window


@compiled
def allreduce(node, call, x, op, divisor):
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
        ranks = board.shape[0]
        low, high = bounds(x.size, ranks, rank)
        if ranks == 2 and op == SUM:
            add_two(row_of(first, x)[low:high], row_of(first + stride, x)[low:high], divisor)
        else:
            reduce_rows(node, first, stride, x, low, high, op, divisor, ranks)
        arrive(board, rank, call, length)
        node[AT] = 2
    return all_arrived(board, rank, node[SPINS], node[PATIENCE])


@compiled
def reduce_scatter(node, call, x, edges, op, divisor):
    """Only this rank's slice, and only in its own row: what two_level begins with. Resumable.

    `edges`: slice i is [edges[i], edges[i + 1]).
    """
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
        reduce_rows(node, first, stride, x, edges[rank], edges[rank + 1], op, divisor, 0)
        arrive(board, rank, call, length)  # no rank writes what another still reads
        node[AT] = 2
    return all_arrived(board, rank, node[SPINS], node[PATIENCE])


@compiled
def allgather(node, call, x, edges):
    """This rank's slice of `x` into every rank's row. Resumable."""
    first, stride, place = locate(node, x)
    if first == 0:
        return ELSEWHERE
    board, rank = board_of(node), node[RANK]
    if node[AT] == 0:
        mine = x[edges[rank] : edges[rank + 1]]
        for peer in range(board.shape[0]):
            if peer != rank:
                copy(row_of(first + peer * stride, x)[edges[rank] : edges[rank + 1]], mine)
        arrive(board, rank, call, x.size + LENGTHS * place)
        node[AT] = 1
    return all_arrived(board, rank, node[SPINS], node[PATIENCE])


@compiled
def reduce_rows(node, first, stride, x, low, high, op, divisor, readers):
    """Tile by tile: read the slice of every row, write the result to `readers` rows (0: to x)."""
    tile = tile_like(node, x)
    for start in range(low, high, TILE):
        end = min(start + TILE, high)
        result = tile[: end - start]
        convert(result, row_of(first, x)[start:end])
        for peer in range(1, board_of(node).shape[0]):
            combine(op, result, row_of(first + peer * stride, x)[start:end])
        divide(result, divisor)
        for peer in range(readers):
            convert(row_of(first + peer * stride, x)[start:end], result)
        if readers == 0:
            convert(x[start:end], result)


@compiled
def add_two(a, b, divisor):
    """Both become (a + b) / divisor: two ranks need no tile."""
    if divisor == 1:
        for i in range(a.size):
            total = narrow(a, widen(a[i]) + widen(b[i]))
            a[i] = total
            b[i] = total
    else:
        over = 1.0 / divisor
        for i in range(a.size):
            total = narrow(a, quotient(widen(a[i]) + widen(b[i]), divisor, over))
            a[i] = total
            b[i] = total
