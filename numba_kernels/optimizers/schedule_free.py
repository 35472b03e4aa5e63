"""Schedule-free SGD and AdamW: an average of the weights in place of a schedule's decay.

    y <- (1 - b) z + b x                gradients g are taken here: these are the parameters
    z <- z - eta_t (d + wd y)           d = g, or for AdamW  g / (sqrt(s / (1 - b2^t)) + eps)
    x <- (1 - c) x + c z                c = eta_t^2 / (eta_1^2 + ... + eta_t^2)
    s <- b2 s + (1 - b2) g^2            before d

A decaying learning rate must know when training ends. x, the average of all z, has converged as
far as if the decay had ended just now, so training may stop at any step. x is what is validated,
saved and predicted with (`show`). y is near x, which keeps gradients fresh; b takes the place of
momentum. The rate rises for `warm_up` updates, and stays: eta_t = eta min(1, t / warm_up).

Only z is kept: x comes from y and z. Defazio et al., arXiv 2405.15682, algorithm 1 and section 2
(as optax.contrib.schedule_free_sgd and schedule_free_adamw; keras.optimizers.ScheduleFreeAdamW has
weights c of 1 / t, and leaves the model at y).
"""

from dataclasses import dataclass

import numpy as np

from ..jit.compile import compiled
from .base import Optimizer


@compiled
def kernel(parameters, gradient, slots, start, hyper, over=None):
    """hyper = [eta_t, b, b2, eps, wd, c, 1 / sqrt(1 - b2^t), 1 in the first update]; for SGD b2 is
    0. slots = [z], or for AdamW [z, s]."""
    number, n = parameters.dtype.type, parameters.size
    eta, b, b2, eps = number(hyper[0]), number(hyper[1]), number(hyper[2]), number(hyper[3])
    wd, c, unbias, c2 = number(hyper[4]), number(hyper[5]), number(hyper[6]), number(1 - hyper[2])
    rest, first = number(1 - hyper[1]), hyper[7] == 1
    z, s = slots[0, start : start + n], slots[-1, start : start + n]
    for i in range(n):
        d, y = gradient[i], parameters[i]
        old = y if first else z[i]
        if b2 > 0:
            s[i] = b2 * s[i] + c2 * d * d
            d = d / (unbias * np.sqrt(s[i]) + eps)
        x = (y - rest * old) / b
        z[i] = old - eta * (d + wd * y)
        x += c * (z[i] - x)
        parameters[i] = b * x + rest * z[i]
        if over is not None:
            gradient[i] = parameters[i]


@dataclass(frozen=True)
class ScheduleFreeSGD(Optimizer):
    """Schedule-free SGD; defaults are the authors', with their library's learning rate.

    Args:
        learning_rate: eta, >= 0; best without a schedule of the Trainer's, whose rates c does not
            know: its weights are those of a constant rate
        beta_1: b, 0 < b < 1, how near the gradients' weights are to the average
        weight_decay: wd, >= 0, at y
        warm_up: updates until the full rate, >= 0
    """

    learning_rate: float = 1.0
    beta_1: float = 0.9
    weight_decay: float = 0.0
    warm_up: int = 0
    slots = 1
    rule = 10
    shows = "always"

    def __post_init__(self):
        super().__post_init__()
        if not self.beta_1 > 0:
            raise ValueError(f"beta_1 must satisfy 0 < beta_1 < 1, got {self.beta_1}")

    def hyper(self, step: int) -> np.ndarray:
        rising = max(1, self.warm_up)  # of which the last is at the full rate
        t = min(step, rising)
        squares = t * (t + 1) * (2 * t + 1) / (6 * rising**2) + step - t  # of t / rising, added up
        share = t / rising
        b2, epsilon = getattr(self, "beta_2", 0.0), getattr(self, "epsilon", 0.0)
        return np.array([
            self.learning_rate * share, self.beta_1, b2, epsilon, self.weight_decay,
            share**2 / squares, 1 / np.sqrt(1 - b2**step), step == 1,
        ], np.float64)  # fmt: skip

    def show(self, parameters, state, shown):
        if state.step:
            number, z = parameters.dtype.type, state.slots[0]
            b = number(self.beta_1)
            if shown:
                parameters -= (1 - b) * z
                parameters /= b
            else:
                parameters *= b
                parameters += (1 - b) * z


@dataclass(frozen=True)
class ScheduleFreeAdamW(ScheduleFreeSGD):
    """Schedule-free AdamW; defaults are the authors'. It takes two arguments more than with SGD.

    Args:
        beta_2: b2, decay of the running mean square, 0 < b2 < 1
        epsilon: added to the root, > 0
    """

    learning_rate: float = 0.0025
    beta_2: float = 0.999
    epsilon: float = 1e-8
    slots = 2
