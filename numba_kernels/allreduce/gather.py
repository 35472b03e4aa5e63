"""Allgather, broadcast, alltoall and scatter through the node's staging buffer, in pieces.

There is one barrier per piece: between two barriers a rank copies the others' piece k - 1 in and
its own piece k out.

    rank 0:  piece 0 out | barrier | piece 0 of others in, piece 1 out | barrier | ...

A broadcast is an allgather in which one rank's slice is all of the vector, and a scatter an
alltoall in which the others send nothing.
"""

from ..jit.compile import compiled
from ..shared.board import READY, meet
from ..shared.node_array import AT, LINE, PIECE, RANK, RANKS
from ..shared.stage import count_pieces, on_stage, piece
from .elementwise import copy
from .steps import Step, Steps


@compiled
def allgather(node, call, x, edges):
    """Copy every rank's slice of `x` to all ranks of the node; lengths may differ. Resumable."""
    rank = node[RANK]
    width = node[PIECE] // x.itemsize
    pieces = count_pieces(edges, width)
    while node[AT] < 2 * (pieces + 1):
        step = node[AT] // 2
        if node[AT] % 2 == 0:
            if step >= 1:
                for peer in range(node[RANKS]):
                    if peer != rank:
                        low, high = piece(edges, peer, width, step - 1)
                        copy(x[low:high], on_stage(node, x, peer, step - 1)[: high - low])
            if step < pieces:
                low, high = piece(edges, rank, width, step)
                copy(on_stage(node, x, rank, step)[: high - low], x[low:high])
        done = meet(node, call, x.size)
        if done != READY:
            return done
    return READY


@compiled
def alltoall(node, call, x, of_x, received, of_received, longest, length):
    """Copy block r of every rank's `x` to rank r's `received`, in the order of ranks. Resumable.

    Block r of x is [of_x[r], of_x[r + 1]); `longest` is that of all blocks on all ranks.
    """
    rank, ranks = node[RANK], node[RANKS]
    width = node[PIECE] // (ranks * x.itemsize) // LINE * LINE
    pieces = (longest + width - 1) // width
    if node[AT] == 0:
        own = received[of_received[rank] : of_received[rank + 1]]
        copy(own, x[of_x[rank] : of_x[rank + 1]])
    while node[AT] < 2 * (pieces + 1):
        step = node[AT] // 2
        if node[AT] % 2 == 0:
            for peer in range(ranks):
                if peer == rank:
                    continue
                if step >= 1:
                    low, high = piece(of_received, peer, width, step - 1)
                    at = rank * width
                    theirs = on_stage(node, x, peer, step - 1)[at : at + high - low]
                    copy(received[low:high], theirs)
                if step < pieces:
                    low, high = piece(of_x, peer, width, step)
                    at = peer * width
                    copy(on_stage(node, x, rank, step)[at : at + high - low], x[low:high])
        done = meet(node, call, length)
        if done != READY:
            return done
    return READY


def in_turn(rank: int, ranks: int) -> Steps:
    """Alltoall by messages: in round k send to the rank k to the right, receive from the left."""
    for distance in range(1, ranks):
        to, source = (rank + distance) % ranks, (rank - distance) % ranks
        yield Step(to, source, sent=(to, to + 1), received=(source, source + 1))
