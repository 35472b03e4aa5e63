"""Allreduce of ordinary arrays through a staging buffer that the node's ranks share, in pieces.

Pieces are small enough to stay in the cache, and each takes three steps. Rank r owns slice r, and
each rank has its own part of the staging buffer (the stage):

    out     copy the piece of every other rank's slice to this rank's part of the stage
    reduce  add the others' pieces, from their parts, to the piece of this rank's own slice; write
            the result to x and back to their parts
    in      copy the pieces of the other slices, now reduced, back from this rank's part

Different pieces are in different steps at the same time, so there is one barrier per piece:

    piece 0     out | reduce |   in   |                  two alternating buffers are enough: a
    piece 1         |  out   | reduce |  in              piece goes out to the buffer from which
    piece 2         |        |  out   | reduce | in      its rank has just copied a piece in

Cost: one barrier per piece, 2 p n bytes through memory as for the in-place version
(shared_memory.py), and 2 n through caches. For short vectors see short.py.
"""

from ..jit.compile import compiled
from ..shared.board import READY, meet
from ..shared.node_array import AT, LINE, PIECE, RANK, RANKS, TILE, tile_like
from ..shared.stage import count_pieces, on_stage, piece
from .elementwise import SUM, combine, convert, copy, divide
from .shared_memory import add_two


@compiled
def allreduce(node, call, x, edges, op, divisor, give):
    """Reduce `x` over the ranks of the node. Resumable.

    `edges`: slice i is [edges[i], edges[i + 1]). Unless `give`, only this rank's slice of x is
    changed (that is a reduce-scatter).
    """
    width = node[PIECE] // (node[RANKS] * x.itemsize) // LINE * LINE  # elements per piece
    pieces = count_pieces(edges, width)
    while node[AT] < 2 * (pieces + 1):  # even: work to do; odd: at the barrier
        step = node[AT] // 2
        if node[AT] % 2 == 0:
            if give and step >= 2:
                take_in(node, x, edges, width, step - 2)
            if step >= 1:
                reduce_piece(node, x, edges, width, step - 1, op, divisor, give)
            if step < pieces:
                put_out(node, x, edges, width, step)
        done = meet(node, call, x.size)
        if done != READY:
            return done
    if give:
        take_in(node, x, edges, width, pieces - 1)
    return READY


@compiled
def put_out(node, x, edges, width, number):
    """Copy piece `number` of every slice but this rank's own to this rank's part of the stage."""
    rank = node[RANK]
    stage = on_stage(node, x, rank, number)
    for slice_ in range(edges.size - 1):
        if slice_ != rank:
            low, high = piece(edges, slice_, width, number)
            copy(stage[slice_ * width : slice_ * width + high - low], x[low:high])


@compiled
def reduce_piece(node, x, edges, width, number, op, divisor, give):
    """Add the others' piece `number` to this rank's slice; if `give`, write the result back."""
    rank, ranks = node[RANK], edges.size - 1
    low, high = piece(edges, rank, width, number)
    if ranks == 2 and op == SUM:
        theirs = on_stage(node, x, 1 - rank, number)[rank * width : rank * width + high - low]
        add_two(x[low:high], theirs, divisor)
        return
    tile = tile_like(node, x)
    for start in range(low, high, TILE):
        end = min(start + TILE, high)
        at, until = rank * width + start - low, rank * width + end - low
        result = tile[: end - start]
        for peer in range(ranks):  # in the order of ranks, as in a window
            theirs = x[start:end] if peer == rank else on_stage(node, x, peer, number)[at:until]
            if peer == 0:
                convert(result, theirs)
            else:
                combine(op, result, theirs)
        divide(result, divisor)
        convert(x[start:end], result)
        if give:
            for peer in range(ranks):
                if peer != rank:
                    copy(on_stage(node, x, peer, number)[at:until], x[start:end])


@compiled
def take_in(node, x, edges, width, number):
    """Copy piece `number` of every slice but this rank's own from this rank's part of the stage."""
    rank = node[RANK]
    stage = on_stage(node, x, rank, number)
    for slice_ in range(edges.size - 1):
        if slice_ != rank:
            low, high = piece(edges, slice_, width, number)
            copy(x[low:high], stage[slice_ * width : slice_ * width + high - low])
