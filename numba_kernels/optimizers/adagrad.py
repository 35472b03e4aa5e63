"""Adagrad: parameters that have had large gradients take smaller steps from then on.

    s <- s + g^2
    w <- w - eta g / sqrt(s + eps)

Duchi, Hazan and Singer, J. Mach. Learn. Res. 12 (2011), figure 1 with diagonal matrices (as
keras.optimizers.Adagrad, which starts s above zero).
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import compiled
from .base import Optimizer, State


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """hyper = [eta, eps]; slots = [s]."""
    number, n = parameters.dtype.type, parameters.size
    eta, eps = number(hyper[0]), number(hyper[1])
    s = slots[0, start : start + n]
    for i in range(n):
        g = gradient[i]
        s[i] += g * g
        parameters[i] -= eta * g / np.sqrt(s[i] + eps)
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad; defaults are Keras's.

    Args:
        learning_rate: eta, >= 0
        initial_accumulator_value: s before the first update, >= 0
        epsilon: added to s, > 0
    """

    learning_rate: float = 0.001
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    slots = 1
    rule = 4

    def init(self, n: int, dtype=np.float32, segments=None, first: int = 0) -> State:
        state = super().init(n, dtype, segments, first)
        state.slots[:] = self.initial_accumulator_value
        return state

    def hyper(self, step: int) -> np.ndarray:
        return np.array([self.learning_rate, self.epsilon], np.float64)
