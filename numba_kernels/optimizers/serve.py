"""What a parameter server does with a gradient: update its weights, and answer with them.

    for each tile:   w = update(w, sent, state);   answer = w

in one pass: a tile of the weights that was just updated is still in the cache when it is copied
into the answer, which may lie in memory shared with the worker (star.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..jit.compile import compiled
from ..jit.copying import copy
from ..jit.denormals import flush_denormals, restore
from ..shared.node_array import TILE
from .base import NO_LAYERS, Optimizer, State, check_vectors
from .switch import apply, set_rate

# Of hubs in this process, whose leaves may help: functions of what `serve` does that do it, or
# return False (hub.py).
helpers: list[Callable[..., bool]] = []


def serve(
    optimizer: Optimizer,
    parameters: np.ndarray,
    sent: np.ndarray,
    state: State,
    answer: np.ndarray | None = None,
) -> None:
    """`optimizer.update(parameters, sent, state)`, then `answer[:] = parameters`, bit for bit.

    Args:
        parameters, sent: flat [n] of one dtype: the weights, and the gradient that came
        answer: [n] of the same dtype; may be the memory of `sent`. None: nobody wants one.

    Where `sent` and `answer` are those of a star, and weights and state lie in memory of its
    `keep`, the leaf that asks does half of the work (helping.py).

    LARS and LAMB need norms first, and so one more pass over `parameters` and `sent`.
    """
    check_vectors(parameters, sent, state)
    if answer is None:
        optimizer.update(parameters, sent, state)
        return
    if answer.shape != parameters.shape or answer.dtype != parameters.dtype:
        raise ValueError(
            f"parameters are {parameters.dtype}{parameters.shape}, but the answer "
            f"{answer.dtype}{answer.shape}; one shape and dtype is needed"
        )
    squares = optimizer.begin(parameters, sent, state) if optimizer.layered else NO_LAYERS
    state.step += 1
    rule, slots, numbers = optimizer.rule, state.slots, optimizer.hyper(state.step)
    if not optimizer.layered:
        for help_ in helpers:
            if help_(rule, parameters, sent, slots, numbers, answer):
                return
    update_and_answer(rule, parameters, sent, slots, state.pieces, numbers, squares, answer)


@compiled
def update_and_answer(rule, parameters, gradient, slots, pieces, hyper, squares, answer):
    """See `serve`; pieces and squares as in optimizers/kernels.py."""
    before = flush_denormals()
    for i in range(pieces.shape[0]):
        if squares.shape[0] > 0:
            set_rate(rule, hyper, squares[pieces[i, 2]])
        for start in range(pieces[i, 0], pieces[i, 1], TILE):
            end = min(start + TILE, pieces[i, 1])
            w = parameters[start:end]
            apply(rule, w, gradient[start:end], slots, start, hyper)
            copy(answer[start:end], w)
    restore(before)
