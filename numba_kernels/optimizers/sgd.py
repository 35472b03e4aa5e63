"""Stochastic gradient descent (SGD): plain, with momentum, and with Nesterov momentum.

    plain:      w <- w - eta g
    momentum:   v <- mu v - eta g;   w <- w + v
    Nesterov:   v <- mu v - eta g;   w <- w + mu v - eta g

As keras.optimizers.SGD. Polyak (1964); Nesterov (1983); Sutskever et al., ICML 2013, eq. 1-4.
"""

from dataclasses import dataclass

from ..jit.compile import compiled
from .base import Optimizer


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """hyper = [learning rate, momentum, 1 if Nesterov]; slots = [v], none without momentum."""
    eta, mu = parameters.dtype.type(hyper[0]), parameters.dtype.type(hyper[1])
    if mu == 0:
        plain(parameters, gradient, eta, over)
    elif hyper[2] == 0:
        momentum(parameters, gradient, slots[0, start : start + parameters.size], eta, mu, over)
    else:
        nesterov(parameters, gradient, slots[0, start : start + parameters.size], eta, mu, over)


@compiled
def plain(parameters, gradient, eta, over):
    for i in range(parameters.size):
        parameters[i] -= eta * gradient[i]
        if over is not None:
            gradient[i] = parameters[i]


@compiled
def momentum(parameters, gradient, v, eta, mu, over):
    for i in range(parameters.size):
        v[i] = mu * v[i] - eta * gradient[i]
        parameters[i] += v[i]
        if over is not None:
            gradient[i] = parameters[i]


@compiled
def nesterov(parameters, gradient, v, eta, mu, over):
    for i in range(parameters.size):
        v[i] = mu * v[i] - eta * gradient[i]
        parameters[i] += mu * v[i] - eta * gradient[i]
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent; defaults are Keras's.

    Args:
        learning_rate: eta, >= 0
        momentum: mu, 0 <= mu < 1; 0 keeps no state
        nesterov: look ahead along the momentum; needs momentum > 0

    Example:
        >>> import numpy as np
        >>> w, sgd = np.ones(1), SGD(learning_rate=0.1)
        >>> state = sgd.init(1, np.float64)
        >>> sgd.update(w, w.copy(), state)      # f(w) = w^2 / 2, so the gradient is w
        >>> float(w[0])
        0.9
    """

    learning_rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    rule = 0
    velocity = 0

    def __post_init__(self):
        super().__post_init__()
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=True needs momentum > 0, got 0")

    @property
    def slots(self) -> int:
        return int(self.momentum > 0)
