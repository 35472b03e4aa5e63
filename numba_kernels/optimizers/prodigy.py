"""Prodigy: Adam, with a learning rate that it finds: the distance to the solution, estimated.

    m <- b1 m + (1 - b1) d g,   s <- b2 s + (1 - b2) d^2 g^2
    a =  d eta sqrt(1 - b2^t) / (1 - b1^t)
    r <- b3 r + (d / d0) a <g, w0 - w>                        over all parameters
    u <- b3 u + (d / d0) a g
    D =  max(d, coefficient r / |u|_1)                        the next d
    w <- w - a (m / (sqrt(s) + D eps) + wd w)                 a of the old d

d begins as d0, too small a distance, and only grows. From |w - w*| >= <g, w0 - w> / |g| it gets a
lower bound of how far away the solution is. So eta is 1, or a schedule's share of it.

r is kept by parameter, and d with each of them, so that ranks may divide the state anywhere.
Mishchenko and Defazio, arXiv 2306.06101, algorithm 4 (as optax.contrib.prodigy; b3 = sqrt(b2)).
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import REASSOCIATE, compiled
from .adam import Adam
from .base import State


@compiled(fastmath=REASSOCIATE)
def norms(parameters, gradient, slots, start, hyper, squares):
    """First pass: all averages; squares += [r, |u|_1] of a slice."""
    number, n = parameters.dtype.type, parameters.size
    share, b1, b2, b3 = number(hyper[1]), number(hyper[2]), number(hyper[3]), number(hyper[4])
    c1, c2, d0 = number(1 - hyper[2]), number(1 - hyper[3]), number(hyper[8])
    first, end = hyper[9] == 1, start + n
    m, s, u = slots[0, start:end], slots[1, start:end], slots[2, start:end]
    r, begun, d = slots[3, start:end], slots[4, start:end], slots[5, start:end]
    of_r = of_u = 0.0
    for i in range(n):
        g, w = gradient[i], parameters[i]
        if first:
            begun[i], d[i] = w, d0
        dg = d[i] * g
        m[i] = b1 * m[i] + c1 * dg
        s[i] = b2 * s[i] + c2 * dg * dg
        rate = d[i] / d0 * d[i] * share
        r[i] = b3 * r[i] + rate * g * (begun[i] - w)
        u[i] = b3 * u[i] + rate * g
        of_r += np.float64(r[i])
        of_u += np.float64(abs(u[i]))
    squares[0] += of_r
    squares[1] += of_u


@compiled
def rate(hyper, squares):
    """Return the estimate of d, coefficient r / |u|_1."""
    return hyper[7] * squares[0] / squares[1] if squares[1] != 0 else 0.0


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """Second pass; hyper = [estimate of d, eta sqrt(1 - b2^t) / (1 - b1^t), b1, b2, b3, eps, wd,
    coefficient, d0, 1 in the first update]; slots = [m, s, u, r, w0, d]."""
    number, n = parameters.dtype.type, parameters.size
    estimate, share, eps, wd = (
        number(hyper[0]),
        number(hyper[1]),
        number(hyper[5]),
        number(hyper[6]),
    )
    m, s, d = (
        slots[0, start : start + n],
        slots[1, start : start + n],
        slots[5, start : start + n],
    )
    for i in range(n):
        w, a = parameters[i], d[i] * share
        if not estimate <= d[i]:
            d[i] = estimate
        parameters[i] = w - a * (m[i] / (np.sqrt(s[i]) + d[i] * eps) + wd * w)
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class Prodigy(Adam):
    """Prodigy; defaults are the authors'. It takes Adam's arguments and three more.

    Args:
        learning_rate: eta, >= 0: a factor of the rate that is found; leave it at 1
        weight_decay: wd, >= 0
        first_estimate: d0, > 0, smaller than any good learning rate
        coefficient: of the estimates, > 0; a smaller one gives smaller rates
    """

    learning_rate: float = 1.0
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    first_estimate: float = 1e-6
    coefficient: float = 1.0
    slots = 6
    rule = 11
    layered = of_model = True

    def init(self, n: int, dtype=np.float32, segments=None, first: int = 0) -> State:
        return super().init(n, dtype, [0], first)  # one layer of all parameters

    def hyper(self, step: int) -> np.ndarray:
        b1, b2 = self.beta_1, self.beta_2
        share = self.learning_rate * np.sqrt(1 - b2**step) / (1 - b1**step)
        numbers = [0, share, b1, b2, np.sqrt(b2), self.epsilon, self.weight_decay]
        return np.array([*numbers, self.coefficient, self.first_estimate, step == 1], np.float64)
