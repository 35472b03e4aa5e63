"""LARS: momentum SGD with a separate learning rate for each layer.

    lambda = c |w| / (|g| + wd |w|)            norms over one layer
    v <- mu v + eta lambda (g + wd w)
    w <- w - v

So a layer moves by about c eta |w| however large its gradient is, which allows batches of many
thousands. A layer whose weights or gradient are all zero takes lambda = 1; otherwise weights that
begin at zero would stay there. You, Gitman and Ginsburg, arXiv 1708.03888, algorithm 1.
(optax.lars divides by |g + wd w|; the two agree at wd = 0.)
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import REASSOCIATE, compiled
from .base import Optimizer


@compiled(fastmath=REASSOCIATE)
def norms(parameters, gradient, squares):
    """First pass: squares += [sum of w^2, sum of g^2] of one layer's slice."""
    of_w = of_g = 0.0
    for i in range(parameters.size):
        w, g = np.float64(parameters[i]), np.float64(gradient[i])
        of_w += w * w
        of_g += g * g
    squares[0] += of_w
    squares[1] += of_g


@compiled
def rate(hyper, squares):
    """Return eta lambda of a layer, from its sums of squares."""
    of_w, of_g = np.sqrt(squares[0]), np.sqrt(squares[1])
    if of_w == 0 or of_g == 0:
        return hyper[1]
    return hyper[1] * hyper[4] * of_w / (of_g + hyper[3] * of_w)


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """Second pass; hyper = [eta lambda of this layer, eta, mu, wd, c]; slots = [v]."""
    number, n = parameters.dtype.type, parameters.size
    step, mu, wd = number(hyper[0]), number(hyper[2]), number(hyper[3])
    v = slots[0, start : start + n]
    for i in range(n):
        w = parameters[i]
        v[i] = mu * v[i] + step * (gradient[i] + wd * w)
        parameters[i] = w - v[i]
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class LARS(Optimizer):
    """LARS; defaults are the paper's, except the learning rate, for which it gives no one value.

    Args:
        learning_rate: eta, >= 0; with 1, the first update moves a layer by about c |w|
        momentum: mu, 0 <= mu < 1
        weight_decay: wd, >= 0
        trust_coefficient: c, > 0
    """

    learning_rate: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    trust_coefficient: float = 0.001
    slots = 1
    velocity = 0
    rule = 8
    layered = True

    def hyper(self, step: int) -> np.ndarray:
        return np.array([0, *super().hyper(step)])
