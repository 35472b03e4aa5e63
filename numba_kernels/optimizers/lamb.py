"""LAMB: Adam with the step of each layer scaled to the norm of the layer's weights.

    m <- b1 m + (1 - b1) g
    s <- b2 s + (1 - b2) g^2
    u =  mhat / (sqrt(shat) + eps) + wd w,     mhat = m / (1 - b1^t), shat = s / (1 - b2^t)
    w <- w - eta |w| / |u| u                   norms over one layer

A layer whose weights or direction u are all zero takes the step eta u. You et al., arXiv
1904.00962, algorithm 2 with phi(x) = x (as optax.lamb; keras.optimizers.Lamb applies weight decay
outside the ratio).

u is not kept between the passes: computing it again costs less than writing and reading it.
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import REASSOCIATE, compiled
from .adam import Adam


@compiled(fastmath=REASSOCIATE)
def norms(parameters, gradient, slots, start, hyper, squares):
    """First pass: update m and s; squares += [sum of w^2, sum of u^2] of one layer's slice."""
    number, n = parameters.dtype.type, parameters.size
    b1, b2, eps, wd = number(hyper[2]), number(hyper[3]), number(hyper[4]), number(hyper[5])
    c1, c2 = number(1 - hyper[2]), number(1 - hyper[3])
    unbias_m, unbias_s = number(hyper[6]), number(hyper[7])
    m, s = slots[0, start : start + n], slots[1, start : start + n]
    of_w = of_u = 0.0
    for i in range(n):
        g, w = gradient[i], parameters[i]
        m[i] = b1 * m[i] + c1 * g
        s[i] = b2 * s[i] + c2 * g * g
        u = unbias_m * m[i] / (unbias_s * np.sqrt(s[i]) + eps) + wd * w
        of_w += np.float64(w) * np.float64(w)
        of_u += np.float64(u) * np.float64(u)
    squares[0] += of_w
    squares[1] += of_u


@compiled
def rate(hyper, squares):
    """Return eta |w| / |u| of a layer, from its sums of squares."""
    of_w, of_u = np.sqrt(squares[0]), np.sqrt(squares[1])
    return hyper[1] if of_w == 0 or of_u == 0 else hyper[1] * of_w / of_u


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """Second pass; hyper = [rate of this layer, eta, b1, b2, eps, wd, 1 / (1 - b1^t),
    1 / sqrt(1 - b2^t)]; slots = [m, s], which contain the gradient already."""
    number, n = parameters.dtype.type, parameters.size
    step, eps, wd = number(hyper[0]), number(hyper[4]), number(hyper[5])
    unbias_m, unbias_s = number(hyper[6]), number(hyper[7])
    m, s = slots[0, start : start + n], slots[1, start : start + n]
    for i in range(n):
        w = parameters[i]
        u = unbias_m * m[i] / (unbias_s * np.sqrt(s[i]) + eps) + wd * w
        parameters[i] = w - step * u
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class LAMB(Adam):
    """LAMB; defaults are the paper's. It takes Adam's arguments and one more.

    Args:
        weight_decay: wd, >= 0
    """

    epsilon: float = 1e-6
    weight_decay: float = 0.01
    rule = 9
    layered = True

    def hyper(self, step: int) -> np.ndarray:
        unbias_m, unbias_s = 1 / (1 - self.beta_1**step), 1 / np.sqrt(1 - self.beta_2**step)
        numbers = [0, self.learning_rate, self.beta_1, self.beta_2, self.epsilon]
        return np.array([*numbers, self.weight_decay, unbias_m, unbias_s], np.float64)
