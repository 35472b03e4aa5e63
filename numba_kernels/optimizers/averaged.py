"""Averages of weights beside any rule: exponential (EMA), and Lookahead.

    w <- update(w, g)                                        of any rule
    e <- keep e + (1 - keep) w          after every `every` updates
    w <- e                              after every `overwrite` updates

With every = 1 this is the exponential moving average of weights (Polyak and Juditsky, 1992): e
is less noisy than w, and it is validated, saved and predicted with. It begins as the weights after
the first update, as with `use_ema` of a Keras optimizer. With every = overwrite = k, keep = 1 - a
it is Lookahead (Zhang et al., arXiv 1907.08610, algorithm 1; optax.lookahead): "slow" weights e
follow the "fast" ones, which go on from there. They begin as the initial weights.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..shared.window import aligned
from .base import Optimizer, State

SAME = (
    *("learning_rate", "rule", "layered", "undivided", "whole", "of_model", "velocity", "hyper"),
    *("begin", "edges"),
)


@dataclass(frozen=True)
class Averaged(Optimizer):
    """The rule `inner` with an average of its weights, which has one slot, the last.

    Args:
        inner: the rule that trains
        keep: share of the average that an update keeps, 0 <= keep < 1
        every: updates between two changes of the average, at least 1
        overwrite: updates after which the weights are set to the average; None: never
        at_end: whether the average is shown when training ends, and then trained on, as `fit` of
            Keras does; else also in each validation, and training goes on from the weights
    """

    inner: Optimizer
    keep: float = 0.999
    every: int = 1
    overwrite: int | None = None
    at_end: bool = False
    by_parts = True

    def __post_init__(self):
        super().__post_init__()
        if self.inner.shows:
            raise ValueError(
                f"{self.inner.in_words} keeps an average itself: leave the other one out"
            )
        for name in ("every", "overwrite"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 update, got {getattr(self, name)}")
        for name in SAME:  # what strategies ask a rule
            if hasattr(self.inner, name):
                object.__setattr__(self, name, getattr(self.inner, name))

    @property
    def slots(self) -> int:
        return self.inner.slots + 1

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def shows(self) -> str:
        return "at the end" if self.at_end else "always"

    @property
    def in_words(self) -> str:
        return f"{self.inner.in_words} and an average of its weights"

    def init(self, n: int, dtype=np.float32, segments=None, first: int = 0) -> State:
        state = self.inner.init(n, dtype, segments, first)
        rows = len(state.slots)
        slots = aligned((rows + 1) * n, np.dtype(dtype)).reshape(rows + 1, n)
        slots[:rows] = state.slots
        state.slots = slots
        return state

    def at_rate(self, learning_rate: float, state: State | None = None) -> Optimizer:
        return replace(self, inner=self.inner.at_rate(learning_rate, state))

    def told(self, segments) -> Optimizer:
        return replace(self, inner=self.inner.told(segments))

    def update(self, parameters, gradient, state):
        self._around(self.inner.update, parameters, gradient, state)

    def finish(self, parameters, gradient, state, squares):
        self._around(self.inner.finish, parameters, gradient, state, squares)

    def _around(self, update, parameters, gradient, state, *squares) -> None:
        average = state.slots[-1]
        if state.step == 0:
            average[:] = parameters
        update(parameters, gradient, state, *squares)
        if state.step % self.every == 0:
            keep = self.keep if state.step > 1 else 0.0
            average += (1 - keep) * (parameters - average)
        if self.overwrite is not None and state.step % self.overwrite == 0:
            parameters[:] = average

    def show(self, parameters, state, shown):
        average = state.slots[-1]
        if state.step and self.at_end:
            if shown:
                parameters[:] = average
        elif state.step:
            average[:], parameters[:] = parameters.copy(), average.copy()
