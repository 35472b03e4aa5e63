"""Adam: the step size of each parameter adapts to that parameter's gradients.

    m <- b1 m + (1 - b1) g                 running mean
    s <- b2 s + (1 - b2) g^2               running mean square
    w <- w - a m / (sqrt(s) + eps),        a = eta sqrt(1 - b2^t) / (1 - b1^t)

Kingma and Ba, arXiv 1412.6980, in the form before section 2.1 (as keras.optimizers.Adam).
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import compiled
from .base import Optimizer


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """hyper = [a, b1, b2, eps] of this step; slots = [m, s]."""
    number, n = parameters.dtype.type, parameters.size
    a, b1, b2, eps = number(hyper[0]), number(hyper[1]), number(hyper[2]), number(hyper[3])
    c1, c2 = number(1 - hyper[1]), number(1 - hyper[2])
    m, s = slots[0, start : start + n], slots[1, start : start + n]
    for i in range(n):
        g = gradient[i]
        m[i] = b1 * m[i] + c1 * g
        s[i] = b2 * s[i] + c2 * g * g
        parameters[i] -= a * m[i] / (np.sqrt(s[i]) + eps)
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; defaults are Keras's.

    Args:
        learning_rate: eta, >= 0
        beta_1: b1, decay of the running mean, 0 <= beta < 1
        beta_2: b2, decay of the running mean square, 0 <= beta < 1
        epsilon: added to the root, > 0; keeps the step finite where gradients vanish
    """

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    slots = 2
    rule = 1

    def hyper(self, step: int) -> np.ndarray:
        rate = self.learning_rate * np.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        return np.array([rate, self.beta_1, self.beta_2, self.epsilon], np.float64)
