"""Adadelta: scales each step by the size of previous steps, so it has the parameters' units.

    s <- rho s + (1 - rho) g^2                      running mean square of gradients
    u <- g sqrt(d + eps) / sqrt(s + eps)
    d <- rho d + (1 - rho) u^2                      running mean square of steps
    w <- w - eta u

Zeiler, arXiv 1212.5701, algorithm 1, where eta is 1 (as keras.optimizers.Adadelta).
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import compiled
from .base import Optimizer


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """hyper = [eta, rho, eps]; slots = [s, d]."""
    number, n = parameters.dtype.type, parameters.size
    eta, rho, eps = number(hyper[0]), number(hyper[1]), number(hyper[2])
    rest = number(1 - hyper[1])
    s, d = slots[0, start : start + n], slots[1, start : start + n]
    for i in range(n):
        g = gradient[i]
        s[i] = rho * s[i] + rest * g * g
        u = g * np.sqrt(d[i] + eps) / np.sqrt(s[i] + eps)
        d[i] = rho * d[i] + rest * u * u
        parameters[i] -= eta * u
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta; defaults are Keras's (the paper's learning rate is 1).

    Args:
        learning_rate: eta, >= 0
        rho: decay of both running means, 0 <= rho < 1
        epsilon: added to both before the root, > 0; it determines the size of the first steps
    """

    learning_rate: float = 0.001
    rho: float = 0.95
    epsilon: float = 1e-7
    slots = 2
    rule = 5
