"""Clipping by global norm: a gradient longer than `clip_norm` is shortened to that length.

    g <- g min(1, clip_norm / |g|)             |g| over all parameters

Pascanu, Mikolov and Bengio, arXiv 1211.5063, algorithm 1. A gradient that lies in slices on several
ranks is as long as the root of all slices' sums of squares: one number is exchanged (fused.py).
"""

from __future__ import annotations

import math

import numpy as np

from ..jit.compile import REASSOCIATE, compiled
from ..jit.denormals import flush_denormals, restore
from .base import TINY, check_range


@compiled(fastmath=REASSOCIATE)
def sum_of_squares(x):
    """Sum of x^2 in float64, so that no float32 gradient is too long to be measured."""
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(x[i])
    return total


@compiled
def squared_length(x):
    """`sum_of_squares`, whatever denormal numbers are in it."""
    before = flush_denormals()
    total = sum_of_squares(x)
    restore(before)
    return total


def clip_factor(norm: float, clip_norm: float) -> float:
    """What a gradient of length `norm` is to be multiplied by; NaN for one that is not finite."""
    if not math.isfinite(norm):
        return math.nan
    return 1.0 if norm <= clip_norm else clip_norm / norm


def clip_by_norm(gradient: np.ndarray, clip_norm: float) -> float:
    """Shorten `gradient` (flat float32 or float64) to `clip_norm` in place, if it is longer.

    Returns the length it had. Raises ValueError for a `clip_norm` that is not above 0.

    >>> g = np.array([3.0, 4.0])
    >>> clip_by_norm(g, 1.0), g.tolist()
    (5.0, [0.6, 0.8])
    """
    check_clip_norm(clip_norm)
    norm = math.sqrt(squared_length(gradient))
    factor = clip_factor(norm, clip_norm)
    if factor != 1:
        gradient *= gradient.dtype.type(factor)
    return norm


def check_clip_norm(clip_norm: float) -> None:
    check_range("clip_norm", clip_norm, TINY, np.inf)
