"""Gradient clipping by global norm: a gradient longer than `clip_norm` is scaled to that length.

    g <- g min(1, clip_norm / |g|)             |g| over all parameters

Pascanu, Mikolov and Bengio, arXiv 1211.5063, algorithm 1. If slices of the gradient lie on several
ranks, its norm is the root of the sum of all slices' sums of squares, so each rank contributes one
number (step/step.py).
"""

import math

import numpy as np

from ..jit.compile import REASSOCIATE, compiled
from ..jit.denormals import flush_denormals, restore
from .base import check_range


@compiled(fastmath=REASSOCIATE)
def sum_of_squares(x):
    """Return the sum of x^2 in float64, so that no float32 gradient overflows it."""
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(x[i])
    return total


@compiled
def squared_length(x):
    """Return `sum_of_squares`, with denormal numbers flushed to zero, which are slow."""
    before = flush_denormals()
    total = sum_of_squares(x)
    restore(before)
    return total


def clip_factor(norm: float, clip_norm: float) -> float:
    """Return the factor for a gradient of length `norm`; NaN if `norm` is not finite."""
    if not math.isfinite(norm):
        return math.nan
    return 1.0 if norm <= clip_norm else clip_norm / norm


def clip_by_norm(gradient: np.ndarray, clip_norm: float) -> float:
    """Scale `gradient` to length `clip_norm` in place, if it is longer; return its length before.

    Example:
        >>> g = np.array([3.0, 4.0])
        >>> clip_by_norm(g, 2.5), g.tolist()
        (5.0, [1.5, 2.0])
    """
    check_range("clip_norm", clip_norm)
    norm = math.sqrt(squared_length(gradient))
    factor = clip_factor(norm, clip_norm)
    if factor != 1:
        gradient *= gradient.dtype.type(factor)
    return norm
