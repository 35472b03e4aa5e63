"""The step between nodes: whatever leaves a node has been reduced on it, and leaves it once.

As on one node, rank r owns slice r of the vector, and its part of the optimizer's state. On every
other node one rank, the *carrier* of slice r, adds up that slice of its node's gradients, which lie
in shared memory, sends the sum to rank r, and later receives the new weights for its whole node.

    node 0   rank 0  owns slice 0, carries slice 2 <---+      1  each carrier sends its node's sum
             rank 1  owns slice 1, carries slice 3 <-+ |         to the owner
                                                     | |      2  each owner adds, updates, and
    node 1   rank 2  owns slice 2, carries slice 0 <-|-+         sends the new weights back
             rank 3  owns slice 3, carries slice 1 <-+        3  both copy them to their node

A slice is cut into pieces, and WIDTH exchanges are in flight: while some pieces are on their way,
the sums of the next are computed and those that have arrived are used in the update. With p ranks
on k nodes each rank sends 2 (k-1) n/p numbers, so 2 n (k-1)/k leave a node of p/k ranks in all;
that is the least possible. Nodes may have different numbers of ranks. A node of one rank sends its
gradient as it is.

A node's sum is divided by its number of samples, which a short first message tells the owners, with
the sum of the losses. No allreduce is needed, and one step takes two latencies with two nodes.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..allreduce.elementwise import copy, scale
from ..allreduce.messages import DATATYPE, TAG, Link, Route, exchange, post
from ..jit.compile import compiled
from ..jit.denormals import flush_denormals, restore
from ..jit.mpi_functions import Wtime
from ..optimizers.switch import apply
from ..shared.board import READY, WAIT
from ..shared.node_array import RANKS, TILE, locate, tile_like
from .kernels import add_own, add_weighted, average, rows_for_weights, to_all

WIDTH = 4  # exchanges in flight
PIECE = 16 * TILE  # elements
ALL, REDUCE, SPREAD = range(3)  # what the kernel does: all of the step, or its parts 1 or 3
TO, SOURCE = range(2)  # columns of `rows`
SIZE, PIECES, FIRST, LAST, ALONE, DONE, BEGUN = range(7)  # in `numbers`
LOOK = 0.1  # seconds after which the kernel returns to Python though messages arrive


class Plan(NamedTuple):
    """Whom this rank exchanges with in a step between nodes, and the state of the kernel.

    In an exchange this rank is the carrier for the rank in the first column of `rows`, and the
    rank in the second column is its own carrier on another node; -1: none.
    """

    rows: np.ndarray  # (exchanges per piece, 2) int64
    numbers: np.ndarray  # (7,) int64
    order: np.ndarray  # (nodes,) int64: the line of `sums` of each node
    sums: np.ndarray  # (exchanges + 1, 2) float64: [samples, sum of losses]; the last: this node's
    raw: np.ndarray  # the same memory in the gradient's dtype
    pool: Link  # of WIDTH links: the first dimension of all arrays but ranks and patience
    edges: np.ndarray  # (ranks + 1,) int64: rank r's slice is [edges[r], edges[r + 1])
    nowhere: np.ndarray = np.zeros((3, 0), np.int64)  # `own` of a gradient that is in one vector


def plan(team, nodes: list[tuple[int, ...]], edges: np.ndarray, dtype) -> Plan:
    """Return the plan of this rank for slices that end at `edges`; `nodes`: every node's ranks."""
    here = next(i for i, node in enumerate(nodes) if team.rank in node)
    rows, order = exchanges(nodes, here, nodes[here].index(team.rank))
    sums = np.zeros((len(rows) + 1, 2))
    sources = np.flatnonzero(rows[:, SOURCE] >= 0)
    numbers = np.zeros(7, np.int64)
    numbers[[SIZE, PIECES]] = PIECE, -(-np.diff(edges).max() // PIECE)
    numbers[[FIRST, LAST]] = sources[[0, -1]]
    numbers[ALONE] = len(nodes[here]) == 1
    return Plan(rows, numbers, order, sums, sums.view(dtype), pool_of(team), edges)


def exchanges(nodes, here: int, place: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `rows` and `order` of the plan of the rank at `place` of nodes[here].

    All ranks go through the same rounds (distance of the nodes, turn), and in a round each sends
    and receives at most once; so they never wait for each other in a circle.
    """
    rows, order = [], np.zeros(len(nodes), np.int64)
    turns = -(-max(map(len, nodes)) // min(map(len, nodes)))
    for distance in range(1, len(nodes)):
        target = nodes[(here + distance) % len(nodes)]
        of = (here - distance) % len(nodes)
        for turn in range(turns):
            owner = turn * len(nodes[here]) + place
            to = target[owner] if owner < len(target) else -1
            mine = place // len(nodes[of]) == turn
            if mine:
                order[of] = len(rows)
            if mine or to >= 0:
                rows.append([to, nodes[of][place % len(nodes[of])] if mine else -1])
    order[here] = len(rows)
    return np.array(rows, np.int64), order


_pools: WeakKeyDictionary = WeakKeyDictionary()


def pool_of(team) -> Link:
    """Return the team's pool of links, which takes part in its recoveries as all its routes do."""
    if team not in _pools:
        link = team.routes[0].link
        stacked = [np.stack([part] * WIDTH) for part in link]
        for i in range(WIDTH):
            one = Link(*(part[i] for part in stacked))._replace(ranks=link.ranks)
            team.routes.append(Route(one, team.rank, team.size))
        pool = Link(*stacked)._replace(ranks=link.ranks, patience=link.patience)
        _pools[team] = pool
    return _pools[team]


@compiled
def one_of(pool, i):
    handles, words, ranks, status, flag, patience = pool
    return Link(handles[i], words[i], ranks, status[i], flag[i], patience)


@compiled
def between(link, rank, ranks, does, plan, node, incoming, gradient, parameters, how, sums, own):
    """Do the step between nodes, or a part of it, after the ranks of the node have met. Resumable.

    `how`: (slots, rule, hyper, factor). `sums`: on return [samples, mean loss] of all ranks. A
    REDUCE leaves the mean gradient in this rank's slice of `gradient`; a SPREAD expects the new
    weights in this rank's slice of `parameters`.
    """
    before = flush_denormals()
    done = exchange_all(
        link, rank, does, plan, node, incoming, gradient, parameters, how, sums, own
    )
    restore(before)
    return done


@compiled
def exchange_all(link, rank, does, plan, node, incoming, gradient, parameters, how, sums, own):
    rows, numbers, _, told, raw, pool, edges, nowhere = plan
    a_piece, width, started = rows.shape[0], numbers[SIZE], Wtime()
    # Exchanges in their order: sums of samples, sums of gradients piece by piece, then weights.
    heads = 0 if does == SPREAD else a_piece
    sent = 0 if does == SPREAD else heads + a_piece * numbers[PIECES]
    low, high = edges[rank], edges[rank + 1]
    while True:
        total = sent if does == REDUCE else sent + a_piece * numbers[PIECES]
        if heads > 0 and numbers[DONE] >= heads and sums[0] == 0:
            total = sent  # no rank has samples: the weights stay
        if numbers[DONE] >= total:
            return READY
        while numbers[BEGUN] < min(total, numbers[DONE] + WIDTH):
            at = numbers[BEGUN]
            piece, row = (at - sent) // a_piece if at >= sent else at // a_piece - 1, at % a_piece
            if at >= sent > 0 and numbers[DONE] < heads + a_piece * (piece + 1):
                break  # these weights are not updated yet
            one = one_of(pool, at % WIDTH)
            one.words[TAG], one.handles[DATATYPE] = link.words[TAG], link.handles[DATATYPE]
            to, source = rows[row, TO], rows[row, SOURCE]
            if at < heads:
                post(one, raw[a_piece], to, raw[row], source)
            else:
                start, end = piece_of(low, high, piece, width)
                theirs, until = piece_of(edges[max(to, 0)], edges[max(to, 0) + 1], piece, width)
                to = to if theirs < until else -1
                source = source if start < end else -1
                if at < sent:
                    if to >= 0 and not numbers[ALONE] and told[a_piece, 0] > 0:
                        sum_on_node(node, gradient, theirs, until, told[a_piece], nowhere)
                    into = arriving(incoming, at * width, end - start)
                    post(one, gradient[theirs:until], to, into, source)
                else:
                    if does == SPREAD and row == numbers[FIRST]:
                        to_node(node, numbers, gradient, parameters, start, end)
                    post(one, parameters[start:end], source, parameters[theirs:until], to)
            numbers[BEGUN] += 1
        at = numbers[DONE]
        piece, row = (at - sent) // a_piece if at >= sent else at // a_piece - 1, at % a_piece
        to, source = rows[row, TO], rows[row, SOURCE]
        start, end = piece_of(low, high, piece, width)
        theirs, until = piece_of(edges[max(to, 0)], edges[max(to, 0) + 1], piece, width)
        if at < heads:
            expected = source
        elif at < sent:
            expected = source if start < end else -1
        else:
            expected = to if theirs < until else -1
        done = exchange(one_of(pool, at % WIDTH), gradient[:0], -1, gradient[:0], expected)
        if done != READY:
            return done
        if at == heads - 1:
            add_up_nodes(plan, sums)
        elif heads <= at < sent and expected >= 0 and sums[0] > 0:
            into = arriving(incoming, at * width, end - start)
            use(node, plan, row, does, gradient, parameters, how, sums, own, low, start, into)
        elif at >= sent and expected >= 0:
            to_node(node, numbers, gradient, parameters, theirs, until)
        numbers[DONE] += 1
        if Wtime() - started > LOOK:
            return WAIT


@compiled
def piece_of(low, high, number, size):
    start = min(low + number * size, high)
    return start, min(start + size, high)


@compiled
def arriving(incoming, start, size):
    """Return the memory in which a piece arrives; exchange `at` begins at `at` pieces."""
    return incoming[start % incoming.size :][:size]


@compiled
def add_up_nodes(plan, sums):
    """sums = [samples of all ranks, mean loss], added in the order of nodes on every rank."""
    sums[:] = 0
    for row in plan.order:
        if plan.sums[row, 0] > 0:
            sums[0] += plan.sums[row, 0]
            sums[1] += plan.sums[row, 1]
    if sums[0] > 0:
        sums[1] /= sums[0]


@compiled
def sum_on_node(node, gradient, start, end, here, nowhere):
    """Write the mean over this node's samples to [start, end) of this rank's own gradient."""
    first, stride, _ = locate(node, gradient)
    for low in range(start, end, TILE):
        high = min(low + TILE, end)
        g = tile_like(node, gradient)[: high - low]
        average(node, first, stride, gradient, low, here, g, nowhere, 1.0)
        copy(gradient[low:high], g)


@compiled
def use(node, plan, row, does, gradient, parameters, how, sums, own, begin, start, arrived):
    """Add another node's sum; with the last one, update the weights (REDUCE: keep the gradient)."""
    numbers, here = plan.numbers, plan.sums[plan.rows.shape[0]]
    slots, rule, hyper, factor = how
    first, stride, _ = locate(node, gradient)
    for low in range(start, start + arrived.size, TILE):
        high = min(low + TILE, start + arrived.size)
        mine, w = gradient[low:high], parameters[low:high]
        g = tile_like(node, gradient)[: high - low]
        if row > numbers[FIRST]:
            copy(g, mine)
        elif here[0] == 0:
            g[:] = 0
        else:
            if not numbers[ALONE]:
                average(node, first, stride, gradient, low, here, g, own, factor)
            elif own.shape[1] > 0:
                g[:] = 0
                add_own(g, factor, gradient, low, own)
            else:
                copy(g, mine)
            scale(g, here[0] / sums[0])
        if plan.sums[row, 0] > 0:
            add_weighted(g, plan.sums[row, 0] / sums[0], arrived[low - start : high - start])
        if row < numbers[LAST] or does == REDUCE:
            copy(mine, g)
        else:
            apply(rule, w, g, slots, low - begin, hyper)
            to_node(node, numbers, gradient, parameters, low, high)


@compiled
def to_node(node, numbers, gradient, parameters, start, end):
    """Copy [start, end) of this rank's weights to the rows of its node."""
    if node[RANKS] > 1 and not numbers[ALONE]:
        to, apart, _ = rows_for_weights(node, gradient, parameters)
        to_all(node, to, apart, gradient, start, parameters[start:end])
