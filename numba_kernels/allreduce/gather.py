"""Allgather, broadcast, alltoall and scatter through the node's staging buffer, in pieces.

There is one barrier per piece: between two barriers a rank copies the others' piece k - 1 in and
its own piece k out.

    rank 0:  piece 0 out | barrier | piece 0 of others in, piece 1 out | barrier | ...
"""

from ..jit.compile import compiled
from ..shared.board import READY, all_arrived, arrive
from ..shared.node_array import AT, LINE, PATIENCE, PIECE, RANK, SPINS, board_of
from ..shared.stage import count_pieces, on_stage, piece
from .elementwise import copy
from .messages import AT as DONE
from .messages import exchange


@compiled
def allgather(node, call, x, edges):
    """Copy every rank's slice of `x` to all ranks of the node; lengths may differ. Resumable."""
    board, rank = board_of(node), node[RANK]
    width = node[PIECE] // x.itemsize
    pieces = count_pieces(edges, width)
    while node[AT] < 2 * (pieces + 1):
        step = node[AT] // 2
        if node[AT] % 2 == 0:
            if step >= 1:
                for peer in range(board.shape[0]):
                    if peer != rank:
                        low, high = piece(edges, peer, width, step - 1)
                        copy(x[low:high], on_stage(node, x, peer, step - 1)[: high - low])
            if step < pieces:
                low, high = piece(edges, rank, width, step)
                copy(on_stage(node, x, rank, step)[: high - low], x[low:high])
            arrive(board, rank, call, x.size)
            node[AT] += 1
        done = all_arrived(board, rank, node[SPINS], node[PATIENCE])
        if done != READY:
            return done
        node[AT] += 1
    return READY


@compiled
def alltoall(node, call, x, received, edges):
    """Copy block r of every rank's `x` to rank r's `received`, in the order of ranks. Resumable."""
    board, rank = board_of(node), node[RANK]
    ranks = board.shape[0]
    width = node[PIECE] // (ranks * x.itemsize) // LINE * LINE
    pieces = count_pieces(edges, width)
    if node[AT] == 0:
        copy(received[edges[rank] : edges[rank + 1]], x[edges[rank] : edges[rank + 1]])
    while node[AT] < 2 * (pieces + 1):
        step = node[AT] // 2
        if node[AT] % 2 == 0:
            for peer in range(ranks):
                if peer == rank:
                    continue
                if step >= 1:
                    low, high = piece(edges, peer, width, step - 1)
                    at = rank * width
                    theirs = on_stage(node, x, peer, step - 1)[at : at + high - low]
                    copy(received[low:high], theirs)
                if step < pieces:
                    low, high = piece(edges, peer, width, step)
                    at = peer * width
                    copy(on_stage(node, x, rank, step)[at : at + high - low], x[low:high])
            arrive(board, rank, call, x.size)
            node[AT] += 1
        done = all_arrived(board, rank, node[SPINS], node[PATIENCE])
        if done != READY:
            return done
        node[AT] += 1
    return READY


@compiled
def pairwise(link, rank, ranks, x, received, edges):
    """Alltoall: in round k send to the rank k to the right, receive from k to the left."""
    words = link.words
    if words[DONE] == 0:
        copy(received[edges[rank] : edges[rank + 1]], x[edges[rank] : edges[rank + 1]])
        words[DONE] = 1
    while words[DONE] < ranks:
        to = (rank + words[DONE]) % ranks
        source = (rank - words[DONE] + ranks) % ranks
        outgoing = x[edges[to] : edges[to + 1]]
        incoming = received[edges[source] : edges[source + 1]]
        done = exchange(link, outgoing, to, incoming, source)
        if done != READY:
            return done
        words[DONE] += 1
    return READY


@compiled
def scatter(node, call, x, received, edges, root):
    """Copy slice r of rank `root`'s `x` to rank r's `received`. Resumable.

    Only the root's `x` is read. A piece has a part of every rank's slice, so all ranks copy at
    once, each 1/p of the bytes.
    """
    board, rank = board_of(node), node[RANK]
    ranks = board.shape[0]
    width = node[PIECE] // (ranks * x.itemsize) // LINE * LINE
    pieces = count_pieces(edges, width)
    if node[AT] == 0 and rank == root:
        copy(received, x[edges[rank] : edges[rank + 1]])
    while node[AT] < 2 * (pieces + 1):
        step = node[AT] // 2
        if node[AT] % 2 == 0:
            if rank != root and step >= 1:
                low, high = piece(edges, rank, width, step - 1)
                at, first = rank * width, edges[rank]
                incoming = on_stage(node, x, root, step - 1)[at : at + high - low]
                copy(received[low - first : high - first], incoming)
            if rank == root and step < pieces:
                for peer in range(ranks):
                    if peer != rank:
                        low, high = piece(edges, peer, width, step)
                        at = peer * width
                        copy(on_stage(node, x, rank, step)[at : at + high - low], x[low:high])
            arrive(board, rank, call, edges[ranks])
            node[AT] += 1
        done = all_arrived(board, rank, node[SPINS], node[PATIENCE])
        if done != READY:
            return done
        node[AT] += 1
    return READY


@compiled
def from_root(link, rank, ranks, x, received, edges, root):
    """Scatter by messages: the root sends to one rank after the other; the others receive."""
    words = link.words
    if rank != root:
        return exchange(link, x[:0], -1, received, root)
    while words[DONE] < ranks:
        to = words[DONE]
        if to == root:
            copy(received, x[edges[to] : edges[to + 1]])
        else:
            done = exchange(link, x[edges[to] : edges[to + 1]], to, x[:0], -1)
            if done != READY:
                return done
        words[DONE] += 1
    return READY
