"""RMSprop: divides each gradient by its running root mean square.

    s <- rho s + (1 - rho) g^2
    a <- rho a + (1 - rho) g               centered only: then s - a^2 is the variance
    u <- eta g / sqrt(s - a^2 + eps)       a = 0 unless centered
    v <- mu v + u;   w <- w - v            with momentum; else w <- w - u

Tieleman and Hinton, Coursera lecture 6.5 (2012); centered: Graves, arXiv 1308.0850, eq. 38-45 (as
keras.optimizers.RMSprop).
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import compiled
from .base import Optimizer


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """hyper = [eta, rho, mu, eps, 1 if centered]; slots = [s], then [v], then [a], as needed."""
    number, n = parameters.dtype.type, parameters.size
    eta, rho, mu, eps = number(hyper[0]), number(hyper[1]), number(hyper[2]), number(hyper[3])
    rest = number(1 - hyper[1])
    # (Rows that follow are not this rule's: an average of the weights, averaged.py.)
    s, next_one = slots[0, start : start + n], slots[min(1, slots.shape[0] - 1), start : start + n]
    if mu == 0 and hyper[4] == 0:
        plain(parameters, gradient, s, eta, rho, rest, eps, over)
    elif hyper[4] == 0:
        momentum(parameters, gradient, s, next_one, eta, rho, rest, mu, eps, over)
    elif mu == 0:
        centered(parameters, gradient, s, next_one, eta, rho, rest, eps, over)
    else:
        a = slots[2, start : start + n]
        centered_momentum(parameters, gradient, s, next_one, a, eta, rho, rest, mu, eps, over)


@compiled
def plain(parameters, gradient, s, eta, rho, rest, eps, over):
    for i in range(parameters.size):
        g = gradient[i]
        s[i] = rho * s[i] + rest * g * g
        parameters[i] -= eta * g / np.sqrt(s[i] + eps)
        if over is not None:
            gradient[i] = parameters[i]


@compiled
def momentum(parameters, gradient, s, v, eta, rho, rest, mu, eps, over):
    for i in range(parameters.size):
        g = gradient[i]
        s[i] = rho * s[i] + rest * g * g
        v[i] = mu * v[i] + eta * g / np.sqrt(s[i] + eps)
        parameters[i] -= v[i]
        if over is not None:
            gradient[i] = parameters[i]


@compiled
def centered(parameters, gradient, s, a, eta, rho, rest, eps, over):
    for i in range(parameters.size):
        g = gradient[i]
        s[i] = rho * s[i] + rest * g * g
        a[i] = rho * a[i] + rest * g
        parameters[i] -= eta * g / np.sqrt(positive(s[i] - a[i] * a[i]) + eps)
        if over is not None:
            gradient[i] = parameters[i]


@compiled
def centered_momentum(parameters, gradient, s, v, a, eta, rho, rest, mu, eps, over):
    for i in range(parameters.size):
        g = gradient[i]
        s[i] = rho * s[i] + rest * g * g
        a[i] = rho * a[i] + rest * g
        v[i] = mu * v[i] + eta * g / np.sqrt(positive(s[i] - a[i] * a[i]) + eps)
        parameters[i] -= v[i]
        if over is not None:
            gradient[i] = parameters[i]


@compiled
def positive(variance):
    """Return `variance`, or 0 if rounding made it negative; this happens when g hardly changes.

    NaN stays NaN. (Keras takes the root of the negative number.)
    """
    return variance if variance > 0 else variance - variance


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop; defaults are Keras's.

    Args:
        learning_rate: eta, >= 0
        rho: decay of the running means, 0 <= rho < 1
        momentum: mu, 0 <= mu < 1
        epsilon: added before the root, > 0
        centered: divide by the root of the variance instead of the root mean square
    """

    learning_rate: float = 0.001
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False
    rule = 6

    @property
    def slots(self) -> int:
        return 1 + (self.momentum > 0) + bool(self.centered)

    @property
    def velocity(self) -> int | None:
        return 1 if self.momentum > 0 else None
