"""Nadam: Adam with Nesterov momentum, which looks ahead along the running mean.

    m <- b1 m + (1 - b1) g
    s <- b2 s + (1 - b2) g^2
    w <- w - eta mhat / (sqrt(s / (1 - b2^t)) + eps)
         mhat = u[t+1] m / (1 - P[t+1]) + (1 - u[t]) g / (1 - P[t])

    u[t] = b1 (1 - 0.96^t / 2),  P[t] = u[1] u[2] ... u[t]

u[t] warms up to b1, so the product P takes the place of Adam's power b1^t. Dozat, ICLR workshop
2016, algorithm 2 (as keras.optimizers.Nadam).
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import compiled
from .adam import Adam

# Product of 1 - 0.96^i / 2 for i = 1..t; for t > 1000 the factors are 1 in float64.
WARM_UP = np.cumprod(1 - 0.5 * 0.96 ** np.arange(1, 1001))


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """hyper = [factor of m, of g, b1, b2, eps, 1 / sqrt(1 - b2^t)] of this step; slots = [m, s]."""
    number, n = parameters.dtype.type, parameters.size
    of_m, of_g, eps, unbias = number(hyper[0]), number(hyper[1]), number(hyper[4]), number(hyper[5])
    b1, b2 = number(hyper[2]), number(hyper[3])
    c1, c2 = number(1 - hyper[2]), number(1 - hyper[3])
    m, s = slots[0, start : start + n], slots[1, start : start + n]
    for i in range(n):
        g = gradient[i]
        m[i] = b1 * m[i] + c1 * g
        s[i] = b2 * s[i] + c2 * g * g
        parameters[i] -= (of_m * m[i] + of_g * g) / (unbias * np.sqrt(s[i]) + eps)
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class Nadam(Adam):
    """Nadam; defaults are Keras's. It takes Adam's arguments."""

    rule = 3

    def hyper(self, step: int) -> np.ndarray:
        eta, b1 = self.learning_rate, self.beta_1
        u, product = self.warmed_up(step)
        u_next, product_next = self.warmed_up(step + 1)
        of_m, of_g = eta * u_next / (1 - product_next), eta * (1 - u) / (1 - product)
        unbias = 1 / np.sqrt(1 - self.beta_2**step)
        return np.array([of_m, of_g, b1, self.beta_2, self.epsilon, unbias], np.float64)

    def warmed_up(self, t: int) -> tuple[float, float]:
        """u[t] and P[t] of the module's docstring."""
        u = self.beta_1 * (1 - 0.5 * 0.96**t)
        return u, self.beta_1**t * WARM_UP[min(t, WARM_UP.size) - 1]
