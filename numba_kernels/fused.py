"""The synchronous step: average the gradients of all ranks and update the weights, in one pass.

Rank i's gradient is the mean over its s_i samples, so the gradient of the whole batch is

    g = sum_i s_i g_i / sum_i s_i

and p ranks do exactly what one process would on the whole batch, however uneven their shares.

In shared memory every rank's gradient is a row of the node's window. Rank r, for its slice only:

    for each tile of slice r:
        tile        = sum_i s_i row_i[tile] / sum_i s_i       read what all ranks wrote
        w[tile]     = update(w[tile], tile, state[tile])      state: this slice only, 1/p a rank
        row_i[tile] = w[tile]  for all i                      the new weights, to every rank

    rank 0:  gradient | barrier | reduce, update, write slice 0 | barrier | copy own row to w
    rank 1:  gradient | barrier | reduce, update, write slice 1 | barrier | copy own row to w

Two barriers, and a gradient is read once and never written back as a gradient. Over messages the
same is a reduce-scatter, an update of this rank's slice, and an allgather of the weights. That the
state is cut among the ranks is known as ZeRO stage 1 (Rajbhandari et al., arXiv 1910.02054).
"""

from __future__ import annotations

import numpy as np
from numba import carray

from . import calls
from .allreduce import ring
from .allreduce.elementwise import SUM, bounds
from .allreduce.shared_memory import ELSEWHERE
from .board import LENGTHS, LOSS, READY, SAMPLES, all_arrived, arrive
from .compile import compiled
from .node import (
    AT,
    BOARD,
    PATIENCE,
    RANK,
    RANKS,
    SPINS,
    TILE,
    board_of,
    locate,
    pointer,
    row_of,
    tile_like,
)
from .optimizers import Optimizer
from .optimizers.kernels import apply


class Step:
    """A synchronous update of `parameters` from every rank's `gradient`.

    Args:
        team: the ranks that train together
        optimizer: its rule; the state made here covers this rank's slice of the parameters only
        parameters: flat float32 or float64 [n], this rank's own copy, equal on all ranks
        gradient: flat [n] of the same dtype; from `team.empty(n)` for the step in shared memory.
            Its content is used up by a step.
    """

    def __init__(self, team, optimizer: Optimizer, parameters: np.ndarray, gradient: np.ndarray):
        if parameters.shape != gradient.shape or parameters.dtype != gradient.dtype:
            raise ValueError(
                f"parameters {parameters.dtype}{parameters.shape} and gradient "
                f"{gradient.dtype}{gradient.shape} differ; one shape and dtype is needed"
            )
        self.team, self.optimizer = team, optimizer
        self.parameters = calls.vector(parameters, "parameters")
        self.gradient = calls.vector(gradient, "gradient")
        first, last = team.slice_of(parameters.size)
        self.mine = slice(first, last)
        self.state = optimizer.init(last - first, parameters.dtype)
        self.shared = team.size > 1 and team.peers(self.gradient) is not None and team.single_node
        self.call = calls.encode("step", parameters.dtype)
        self._sums = np.zeros(2)

    def __call__(self, loss: float, samples: int) -> tuple[float, int]:
        """Do one step, `gradient` being the mean over this rank's `samples` (0 is allowed).

        Returns the mean loss over all ranks' samples, and how many those are. With no sample on
        any rank nothing is updated.
        """
        hyper = self.optimizer.hyper(self.state.step + 1)
        one = self._alone if self.team.size == 1 else self._on_node if self.shared else self._sent
        loss, total = one(loss, samples, hyper)
        self.state.step += total > 0
        return loss, total

    def _alone(self, loss, samples, hyper):
        if samples:
            apply(self.optimizer.rule, self.parameters, self.gradient, self.state.slots, hyper)
        return (float(loss) if samples else 0.0), samples

    def _on_node(self, loss, samples, hyper):
        self._sums[:] = samples, loss
        self.team.on_node(
            step, self.call, self.gradient, self.parameters, self.state.slots,
            self.optimizer.rule, hyper, self._sums,
        )  # fmt: skip
        return float(self._sums[1]), int(self._sums[0])

    def _sent(self, loss, samples, hyper):
        team, n = self.team, self.parameters.size
        total, loss = team.allreduce(np.array([samples, loss * samples if samples else 0.0]))
        if not samples:
            self.gradient[:] = 0  # whatever it holds: NaN times no weight would still be NaN
        if total:
            self.gradient *= self.gradient.dtype.type(samples / total)
            incoming = team.scratch(n // team.size + 64, self.parameters.dtype)
            team.by_messages(
                self.call, n, self.parameters.dtype, ring.reduce_scatter,
                (self.gradient, incoming, SUM, 1.0),
            )  # fmt: skip
            mine = self.mine
            apply(
                self.optimizer.rule, self.parameters[mine], self.gradient[mine],
                self.state.slots, hyper,
            )  # fmt: skip
            team.by_messages(
                self.call, n, self.parameters.dtype, ring.allgather, (self.parameters, 0)
            )
        return (float(loss / total) if total else 0.0), int(total)


@compiled
def step(node, call, gradient, parameters, slots, rule, hyper, sums):
    """The step in shared memory. `sums`: this rank's [samples, mean loss]; on return all ranks'.

    Resumable.
    """
    first, stride, place = locate(node, gradient)
    if first == 0:
        return ELSEWHERE
    board, rank, ranks, n = board_of(node), node[RANK], node[RANKS], gradient.size
    length = n + LENGTHS * place
    floats = carray(pointer(node[BOARD], sums), board.shape)  # the same memory
    if node[AT] == 0:
        floats[rank, SAMPLES] = sums[0]
        floats[rank, LOSS] = sums[1]
        arrive(board, rank, call, length)
        node[AT] = 1
    if node[AT] == 1:
        done = all_arrived(board, rank, node[SPINS], node[PATIENCE])
        if done != READY:
            return done
        add_up(floats, sums)
        if sums[0] > 0:
            low, high = bounds(n, ranks, rank)
            tile = tile_like(node, gradient)
            for start in range(low, high, TILE):
                end = min(start + TILE, high)
                g, w = tile[: end - start], parameters[start:end]
                g[:] = 0
                for peer in range(ranks):
                    if floats[peer, SAMPLES] > 0:  # what a rank without samples holds is no matter
                        row = row_of(first + peer * stride, gradient)[start:end]
                        add_weighted(g, floats[peer, SAMPLES] / sums[0], row)
                apply(rule, w, g, slots[:, start - low : end - low], hyper)
                for peer in range(ranks):
                    row_of(first + peer * stride, gradient)[start:end] = w
        arrive(board, rank, call, length)
        node[AT] = 2
    done = all_arrived(board, rank, node[SPINS], node[PATIENCE])
    if done == READY and sums[0] > 0:
        parameters[:] = gradient  # by now they are the new weights
    return done


@compiled
def add_up(floats, sums):
    """sums = [samples of all ranks, mean loss over them]"""
    sums[:] = 0
    for peer in range(floats.shape[0]):
        if floats[peer, SAMPLES] > 0:
            sums[0] += floats[peer, SAMPLES]
            sums[1] += floats[peer, SAMPLES] * floats[peer, LOSS]
    if sums[0] > 0:
        sums[1] /= sums[0]


@compiled
def add_weighted(g, weight, row):
    """g += weight * row"""
    weight = g.dtype.type(weight)
    for i in range(g.size):
        g[i] += weight * row[i]
