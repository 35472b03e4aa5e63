"""Serve a gradient on a parameter server: update the weights and copy them into the answer.

    for each tile:   w = update(w, sent, state);   answer = w

It makes one pass: a tile of the weights is still in the cache when it is copied into the answer,
which may lie in memory shared with the worker (star.py). If the answer takes the place of the
gradient, the update itself writes both, element by element, and nothing is copied.
"""

from collections.abc import Callable

import numpy as np

from ..jit.compile import compiled
from ..jit.copying import copy
from ..jit.denormals import flush_denormals, restore
from .base import NO_LAYERS, Optimizer, State, check_vectors
from .switch import apply, set_rate

TILE = 16384  # bytes of weights that are copied together; with the gradient, a first-level cache

# One function per hub in this process whose leaves may help. It does the work of `serve`, or
# returns False (hub.py).
helpers: list[Callable[..., bool]] = []


def serve(
    optimizer: Optimizer,
    parameters: np.ndarray,
    sent: np.ndarray,
    state: State,
    answer: np.ndarray | None = None,
) -> None:
    """`optimizer.update(parameters, sent, state)`, then `answer[:] = parameters`, bit for bit.

    If `sent` and `answer` are vectors of a star, and weights and state lie in memory of its `keep`,
    the requesting leaf does half of the work (helping.py). `answer` may be the memory of `sent`;
    None if it is not wanted. LARS and LAMB need norms first, and so one more pass over `parameters`
    and `sent`; a rule `by_parts` updates all, and then the answer is a copy.
    """
    check_vectors(parameters, sent, state)
    if answer is None:
        optimizer.update(parameters, sent, state)
        return
    if answer.shape != parameters.shape or answer.dtype != parameters.dtype:
        raise ValueError(
            f"parameters are {parameters.dtype}{parameters.shape}, but the answer is "
            f"{answer.dtype}{answer.shape}; they must have the same shape and dtype"
        )
    if optimizer.by_parts:
        optimizer.update(parameters, sent, state)
        answer[:] = parameters
        return
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
    """Do the work of `serve`; `pieces` and `squares` are as in optimizers/switch.py."""
    before, tile = flush_denormals(), TILE // parameters.itemsize
    over = answer.ctypes.data == gradient.ctypes.data and answer.strides == gradient.strides
    for i in range(pieces.shape[0]):
        low, high = pieces[i, 0], pieces[i, 1]
        if squares.shape[0] > 0:
            set_rate(rule, hyper, squares[pieces[i, 2]])
        if over:
            apply(rule, parameters[low:high], gradient[low:high], slots, low, hyper, True)
            continue
        for start in range(low, high, tile):
            end = min(start + tile, high)
            w = parameters[start:end]
            apply(rule, w, gradient[start:end], slots, start, hyper)
            copy(answer[start:end], w)
    restore(before)
