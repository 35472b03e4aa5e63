"""What all optimizers share: hyper-parameters that don't change, and a state that does.

An optimizer is a frozen dataclass of hyper-parameters. Its rule is one kernel,

    kernel(parameters, gradient, slots, hyper)

where `slots`, shape (k, n), are its k running averages and `hyper` the numbers of this step. A
kernel touches every element once, in place, and works on any slice: that is what lets each rank
update its own share (fused.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class State:
    """What an optimizer remembers: `step` updates done so far, and `slots`, shape (k, n)."""

    step: int
    slots: np.ndarray


class Optimizer:
    """Base class: `init` and `update` on top of `hyper` and `kernel` of the rule."""

    slots = 0  # running averages that the rule keeps
    rule = -1  # its number in the compiled switch (kernels.py)

    def init(self, n: int, dtype=np.float32) -> State:
        """The state for `n` parameters before the first update: all zeros."""
        return State(0, np.zeros((self.slots, n), dtype))

    def hyper(self, step: int) -> np.ndarray:
        """The kernel's numbers for update number `step` (1 is the first), float64."""
        raise NotImplementedError

    def update(self, parameters: np.ndarray, gradient: np.ndarray, state: State) -> None:
        """One update in place, over flat arrays of one length and dtype; counts it in `state`."""
        from .kernels import apply

        if not parameters.shape == gradient.shape == state.slots.shape[1:]:
            raise ValueError(
                f"shapes differ: parameters {parameters.shape}, gradient {gradient.shape}, "
                f"state {state.slots.shape[1:]}"
            )
        if not parameters.dtype == gradient.dtype == state.slots.dtype:
            raise TypeError(
                f"dtypes differ: parameters {parameters.dtype}, gradient {gradient.dtype}, "
                f"state {state.slots.dtype}"
            )
        state.step += 1
        apply(self.rule, parameters, gradient, state.slots, self.hyper(state.step))


def check_range(name: str, value: float, low: float, high: float) -> None:
    """ValueError unless low <= value < high."""
    if not low <= value < high:
        raise ValueError(f"{name} is {value}; {low} <= {name} < {high} is needed")
