"""The compiled kernels of the synchronous step; step.py explains it.

Rows of the gradient lie in the window. If the parameters lie there too, the owner of a slice writes
new weights directly to every rank's row; rows that are all the same memory (a stride of 0) need no
copies. Otherwise new weights go through the rows of the gradient.
"""

from numba import carray

from ..allreduce.elementwise import bounds, copy, scale
from ..allreduce.shared_memory import ELSEWHERE
from ..jit.compile import compiled
from ..jit.denormals import flush_denormals, restore
from ..optimizers.switch import apply
from ..shared import board
from ..shared.board import LENGTHS, LOSS, READY, SAMPLES
from ..shared.node_array import (
    AT,
    BOARD,
    RANK,
    RANKS,
    TILE,
    board_of,
    elements_at,
    locate,
    pointer,
    row_of,
    tile_like,
)


@compiled
def step(node, call, gradient, parameters, slots, rule, hyper, sums, own, factor):
    """The step in shared memory, in one pass. Resumable.

    `sums`: this rank's [samples, mean loss]; on return those of all ranks. `own` and `factor`: the
    place of this rank's slice of its gradient, if it is elsewhere (see `Step.own`).
    """
    first, stride, place = locate(node, gradient)
    if first == 0:
        return ELSEWHERE
    to, apart, place = rows_for_weights(node, gradient, parameters)
    n = gradient.size
    length = n + LENGTHS * place
    if node[AT] < 2:
        done = all_there(node, call, length, sums)
        if done != READY:
            return done
        if sums[0] > 0:
            low, high = bounds(n, node[RANKS], node[RANK])
            before = flush_denormals()
            for start in range(low, high, TILE):
                end = min(start + TILE, high)
                w, g = parameters[start:end], tile_like(node, gradient)[: end - start]
                average(node, first, stride, gradient, start, sums, g, own, factor)
                apply(rule, w, g, slots, start - low, hyper)
                to_all(node, to, apart, gradient, start, w)
            restore(before)
    done = board.meet(node, call, length)
    if done == READY and sums[0] > 0 and to == first:
        copy(parameters, gradient)  # the gradient's row now holds the new weights
    return done


@compiled
def rows_for_weights(node, gradient, parameters):
    """Return where new weights go, as `locate` does, with a place that depends on both arrays."""
    first, stride, place = locate(node, gradient)
    to, apart, of_weights = locate(node, parameters)
    if to == 0:
        return first, stride, place
    return to, apart, 1 + (place + 1009 * of_weights) % 8_388_592


@compiled
def reduce(node, call, gradient, parameters, sums, own):
    """Write the mean over all ranks to this rank's slice of its own gradient. Resumable."""
    first, stride, _ = locate(node, gradient)
    if first == 0:
        return ELSEWHERE
    _, _, place = rows_for_weights(node, gradient, parameters)
    done = all_there(node, call, gradient.size + LENGTHS * place, sums)
    if done == READY and sums[0] > 0:
        low, high = bounds(gradient.size, node[RANKS], node[RANK])
        before = flush_denormals()
        for start in range(low, high, TILE):
            end = min(start + TILE, high)
            g = tile_like(node, gradient)[: end - start]
            average(node, first, stride, gradient, start, sums, g, own, 1.0)
            copy(gradient[start:end], g)
        restore(before)
    return done


@compiled
def hand_out(node, call, gradient, parameters, changed):
    """Copy this rank's slice of the weights to all ranks. Resumable."""
    first, _, _ = locate(node, gradient)
    if first == 0:
        return ELSEWHERE
    to, apart, _ = rows_for_weights(node, gradient, parameters)
    n = gradient.size
    if node[AT] == 0 and changed:
        low, high = bounds(n, node[RANKS], node[RANK])
        for start in range(low, high, TILE):
            w = parameters[start : min(start + TILE, high)]
            to_all(node, to, apart, gradient, start, w)
    return last_barrier(node, call, gradient, parameters, changed)


@compiled
def meet(node, call, gradient, parameters, sums):
    """The first barrier alone; `sums` becomes [samples, mean loss] of the node. Resumable."""
    _, _, place = rows_for_weights(node, gradient, parameters)
    return all_there(node, call, gradient.size + LENGTHS * place, sums)


@compiled
def last_barrier(node, call, gradient, parameters, changed):
    """The last barrier, after which the new weights of the node are complete. Resumable."""
    first, _, _ = locate(node, gradient)
    to, _, place = rows_for_weights(node, gradient, parameters)
    done = board.meet(node, call, gradient.size + LENGTHS * place)
    if done == READY and changed and to == first and first != 0:
        copy(parameters, gradient)  # the gradient's row now holds the new weights
    return done


@compiled
def all_there(node, call, length, sums):
    """The first barrier: afterwards gradients are complete and `sums` are those of all ranks."""
    if node[AT] == 0:
        mine = floats_of(node, sums)[node[RANK]]
        mine[SAMPLES], mine[LOSS] = sums[0], sums[1]
    done = board.meet(node, call, length)
    if done == READY:
        add_up(floats_of(node, sums), sums)
    return done


@compiled
def floats_of(node, sums):
    return carray(pointer(node[BOARD], sums), board_of(node).shape)


@compiled
def average(node, first, stride, gradient, start, sums, g, own, factor):
    """g = mean gradient over all samples of all ranks, from element `start` on."""
    floats, end = floats_of(node, sums), start + g.size
    g[:] = 0
    for peer in range(node[RANKS]):
        if floats[peer, SAMPLES] > 0:  # without samples, a rank's gradient is undefined
            weight = floats[peer, SAMPLES] / sums[0]
            if peer == node[RANK] and own.shape[1] > 0:
                add_own(g, weight * factor, gradient, start, own)
            else:
                row = row_of(first + peer * stride, gradient)[start:end]
                add_weighted(g, weight, row)


@compiled
def layer_of(own, start):
    """Return the last layer that begins at or before `start`; 0 if there is none.

    (np.searchsorted would make every process import the compiler, which takes 0.3 s.)
    """
    low, high = 0, own.shape[1]
    while low < high:
        middle = (low + high) // 2
        if own[0, middle] <= start:
            low = middle + 1
        else:
            high = middle
    return max(0, low - 1)


@compiled
def add_own(g, weight, gradient, start, own):
    """g += weight * this rank's gradient, which lies where `own` says; gaps are zero."""
    end = start + g.size
    part = layer_of(own, start)
    while part < own.shape[1] and own[0, part] < end:
        offset, size, address = own[0, part], own[1, part], own[2, part]
        low, high = max(start, offset), min(end, offset + size)
        if low < high:
            layer = elements_at(address, gradient, size)[low - offset : high - offset]
            add_weighted(g[low - start : high - start], weight, layer)
        part += 1


@compiled
def to_all(node, first, stride, gradient, start, w):
    """Copy w to every rank's row, from element `start` on, except the row that `w` is part of."""
    for peer in range(node[RANKS]):
        row = row_of(first + peer * stride, gradient)[start : start + w.size]
        if row.ctypes.data != w.ctypes.data:
            copy(row, w)


@compiled
def add_up(floats, sums):
    """sums = [samples of all ranks, mean loss over them]."""
    sums[:] = 0
    for peer in range(floats.shape[0]):
        if floats[peer, SAMPLES] > 0:
            sums[0] += floats[peer, SAMPLES]
            sums[1] += floats[peer, SAMPLES] * floats[peer, LOSS]
    if sums[0] > 0:
        sums[1] /= sums[0]


@compiled
def add_weighted(g, weight, row):
    weight = g.dtype.type(weight)
    for i in range(g.size):
        g[i] += weight * row[i]


@compiled
def weigh(x, factor):
    """x *= factor, with denormals flushed to zero."""
    before = flush_denormals()
    scale(x, factor)
    restore(before)
