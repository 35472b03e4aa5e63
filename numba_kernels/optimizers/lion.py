"""Lion: every parameter takes a step of the same size, in the direction given by a sign.

    w <- w - eta (sign(b1 m + (1 - b1) g) + wd w)
    m <- b2 m + (1 - b2) g

It keeps one running average; Adam keeps two. Its steps are larger than Adam's, so the paper uses a
learning rate 3 to 10 times smaller and a weight decay larger by the same factor. Chen et al., arXiv
2302.06675, program 1 (as keras.optimizers.Lion).
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import compiled
from .base import Optimizer


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """hyper = [eta, b1, b2, wd]; slots = [m]."""
    number, n = parameters.dtype.type, parameters.size
    eta, b1, b2, wd = number(hyper[0]), number(hyper[1]), number(hyper[2]), number(hyper[3])
    c1, c2 = number(1 - hyper[1]), number(1 - hyper[2])
    m = slots[0, start : start + n]
    for i in range(n):
        g, w = gradient[i], parameters[i]
        parameters[i] = w - eta * (np.sign(b1 * m[i] + c1 * g) + wd * w)
        m[i] = b2 * m[i] + c2 * g
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion; defaults are Keras's.

    Args:
        learning_rate: eta, >= 0; the distance that every parameter moves in an update
        beta_1: b1, decay of the running mean inside the sign, 0 <= beta < 1
        beta_2: b2, decay of the running mean that is kept, 0 <= beta < 1
        weight_decay: wd, >= 0
    """

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float = 0.0
    slots = 1
    rule = 7
