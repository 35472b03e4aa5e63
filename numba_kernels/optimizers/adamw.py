"""AdamW: Adam with decoupled weight decay, which does not go through the gradient.

    w <- w - eta wd w                      then Adam's update (adam.py)

If the decay were added to the gradient, it would be divided by sqrt(s) as well, and weights with
large gradients would decay less. Loshchilov and Hutter, arXiv 1711.05101, algorithm 2 (as
keras.optimizers.AdamW: the decay is scaled by the learning rate).
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import compiled
from .adam import Adam


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """hyper = [a, b1, b2, eps, eta wd] of this step; slots = [m, s]."""
    number, n = parameters.dtype.type, parameters.size
    a, b1, b2, eps = number(hyper[0]), number(hyper[1]), number(hyper[2]), number(hyper[3])
    c1, c2, decay = number(1 - hyper[1]), number(1 - hyper[2]), number(hyper[4])
    m, s = slots[0, start : start + n], slots[1, start : start + n]
    for i in range(n):
        g, w = gradient[i], parameters[i]
        m[i] = b1 * m[i] + c1 * g
        s[i] = b2 * s[i] + c2 * g * g
        parameters[i] = w - decay * w - a * m[i] / (np.sqrt(s[i]) + eps)
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW; defaults are Keras's. It takes Adam's arguments and one more.

    Args:
        weight_decay: wd, >= 0; a weight with zero gradient shrinks by eta wd w per update
    """

    weight_decay: float = 0.004
    rule = 2

    def hyper(self, step: int) -> np.ndarray:
        return np.append(super().hyper(step), self.learning_rate * self.weight_decay)
