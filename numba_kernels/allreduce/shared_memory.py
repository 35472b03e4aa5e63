"""Allreduce in place, in memory that all ranks of the node share: no messages are sent.

Row i is rank i's vector, in a window (`team.empty`). Rank r reduces slice r over all rows and
writes the result back to slice r of every row.

              slice 0     slice 1     slice 2
    row 0    [ rank 0  |  rank 1   |  rank 2  ]
    row 1    [ reads & |  reads &  |  reads & ]      barrier, this picture, barrier
    row 2    [ writes  |  writes   |  writes  ]

Cost: two barriers + 2 p n bytes through memory, divided among the ranks.

Why in place: if one core writes a cache line and another only reads it, the owner must invalidate
the reader's copy before it can write the line again. Here the rank that reads a peer's line also
writes it, so each line moves once each way and no more. For vectors outside a window see staged.py.
"""

from ..jit.compile import compiled
from ..jit.halves import narrow, widen
from ..shared.board import LENGTHS, READY, meet
from ..shared.node_array import AT, RANK, RANKS, TILE, locate, row_of, tile_like
from .elementwise import SUM, bounds, combine, convert, copy, divide, quotient

ELSEWHERE = 2  # x does not lie in a window; returned at once, and on this rank only


@compiled
def allreduce(node, call, x, op, divisor):
    """Reduce `x`, which lies in this rank's row of a window, in place. Resumable."""
    first, stride, place = locate(node, x)
    if first == 0:
        return ELSEWHERE
    ranks, rank, length = node[RANKS], node[RANK], x.size + LENGTHS * place
    if node[AT] < 2:
        done = meet(node, call, length)
        if done != READY:
            return done
        low, high = bounds(x.size, ranks, rank)
        if ranks == 2 and op == SUM:
            add_two(row_of(first, x)[low:high], row_of(first + stride, x)[low:high], divisor)
        else:
            reduce_rows(node, first, stride, x, low, high, op, divisor, ranks)
    return meet(node, call, length)


@compiled
def reduce_scatter(node, call, x, edges, op, divisor):
    """Reduce slice `rank` of `x`, as `edges` say, in this rank's own row only. Resumable."""
    first, stride, place = locate(node, x)
    if first == 0:
        return ELSEWHERE
    rank, length = node[RANK], x.size + LENGTHS * place
    if node[AT] < 2:
        done = meet(node, call, length)
        if done != READY:
            return done
        reduce_rows(node, first, stride, x, edges[rank], edges[rank + 1], op, divisor, 0)
    return meet(node, call, length)  # so that no rank overwrites what another still reads


@compiled
def allgather(node, call, x, edges):
    """Copy this rank's slice of `x` to every rank's row. Resumable."""
    first, stride, place = locate(node, x)
    if first == 0:
        return ELSEWHERE
    rank = node[RANK]
    if node[AT] == 0:
        mine = x[edges[rank] : edges[rank + 1]]
        for peer in range(node[RANKS]):
            if peer != rank:
                copy(row_of(first + peer * stride, x)[edges[rank] : edges[rank + 1]], mine)
    return meet(node, call, x.size + LENGTHS * place)


@compiled
def reduce_rows(node, first, stride, x, low, high, op, divisor, readers):
    """Tile by tile: read the slice of every row, write the result to `readers` rows (0: to x)."""
    tile = tile_like(node, x)
    for start in range(low, high, TILE):
        end = min(start + TILE, high)
        result = tile[: end - start]
        convert(result, row_of(first, x)[start:end])
        for peer in range(1, node[RANKS]):
            combine(op, result, row_of(first + peer * stride, x)[start:end])
        divide(result, divisor)
        for peer in range(readers):
            convert(row_of(first + peer * stride, x)[start:end], result)
        if readers == 0:
            convert(x[start:end], result)


@compiled
def add_two(a, b, divisor):
    """Set both a and b to (a + b) / divisor. With two ranks no tile is needed."""
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
