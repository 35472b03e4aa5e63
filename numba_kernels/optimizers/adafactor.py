"""Adafactor: mean squares of a matrix's gradient, from those of its rows and columns alone.

    R <- b R + (1 - b) mean of (G^2 + e1) over columns,  C <- likewise over rows
    V =  R C^T / mean(R)                                 rank 1; a vector keeps V itself
    U =  G / sqrt(V),   U <- U / max(1, rms(U) / d)      clipped
    w <- w - max(e2, rms(w)) rho_t U

    b = 1 - t^decay,  rho_t = min(eta, 1 / sqrt(t)),  rms: root of the mean square of an array

The state of a matrix is rows + columns numbers, where Adam has 2 rows columns. They lie at the
beginning of the matrix's part of the slot, whose other pages are never touched and so take no
memory. Steps are relative to the size of an array's weights.

Shazeer and Stern, arXiv 1804.04235, algorithm 4 (as keras.optimizers.Adafactor; of more than two
dimensions the last two are factored).
"""

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from .matrices import OfMatrices


@dataclass(frozen=True)
class Adafactor(OfMatrices):
    """Adafactor; defaults are Keras's.

    Args:
        learning_rate: eta, >= 0: the most that rho is
        beta_2_decay: decay, below 0
        epsilon_1: e1, > 0
        epsilon_2: e2, > 0: what an array that is nearly zero moves by, in rates
        clip_threshold: d, > 0
    """

    learning_rate: float = 0.001
    beta_2_decay: float = -0.8
    epsilon_1: float = 1e-30
    epsilon_2: float = 1e-3
    clip_threshold: float = 1.0
    slots = 1
    rule = 0  # plain SGD, at rate 0, in the gaps between arrays

    def shape_of(self, name, shape, last):
        return shape

    def work(self, shape):
        return 1

    def hyper(self, step: int) -> np.ndarray:
        return np.zeros(3)

    def turn(self, w, g, slots, step):
        b = 1 - step**self.beta_2_decay
        squares = np.square(g)
        squares += self.epsilon_1
        parts = factors(slots[0], w.shape)
        for part, axis in zip(parts, (-1, -2) if len(parts) > 1 else (None,), strict=True):
            part *= b
            part += (1 - b) * (squares if axis is None else squares.mean(axis=axis))
        if len(parts) > 1:  # one after the other: where both are e1, float32 rounds V to 0
            rows, columns = parts
            u = g / np.sqrt(rows / rows.mean(axis=-1, keepdims=True))[..., None]
            u /= np.sqrt(columns)[..., None, :]
        else:
            u = g / np.sqrt(parts[0])
        rho = min(self.learning_rate, 1 / sqrt(step)) * max(self.epsilon_2, rms(w))
        w -= rho / max(1.0, rms(u) / self.clip_threshold) * u


def rms(x: np.ndarray) -> float:
    """The root of the mean square, in float64."""
    return sqrt(np.mean(np.square(x), dtype=np.float64))


def factors(slot: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Views of an array's part of the slot: [R, C] of a matrix, or of several, else [V].

    A side of one element is not worth factoring: V is then what R and C amount to.
    """
    if len(shape) < 2 or min(shape[-2:]) < 2:
        return [slot[: prod(shape)].reshape(shape)]
    shapes = shape[:-1], (*shape[:-2], shape[-1])
    rows = prod(shapes[0])
    return [slot[:rows].reshape(shapes[0]), slot[rows:][: prod(shapes[1])].reshape(shapes[1])]
