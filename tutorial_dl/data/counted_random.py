"""Random numbers that depend on (seed, number of a sample) alone, so any rank can draw them.

The generator is splitmix64 (Steele, Lea, Flood, OOPSLA 2014), started from a hash of both.
"""

from math import log, sqrt

import numpy as np

from numba_kernels.jit.compile import compiled

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BY_30, BY_27, BY_31, BY_11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
UNIT = 2.0**-53


@compiled
def mixed(z):
    """splitmix64's hash of a uint64."""
    z = (z ^ (z >> BY_30)) * FIRST
    z = (z ^ (z >> BY_27)) * SECOND
    return z ^ (z >> BY_31)


@compiled
def uniform(state):
    """The next number in [0, 1) of the generator `state`, uint64 (1,)."""
    state[0] += GOLDEN
    return np.float64(mixed(state[0]) >> BY_11) * UNIT


@compiled
def normal(state):
    """A standard normal number (Marsaglia's polar method)."""
    while True:
        x, y = 2 * uniform(state) - 1, 2 * uniform(state) - 1
        w = x * x + y * y
        if 0 < w < 1:
            return x * sqrt(-2 * log(w) / w)


@compiled
def gamma(state, shape):
    """A number of density x^(shape-1) e^-x (Marsaglia and Tsang, ACM TOMS 26, 2000)."""
    boost = 1.0
    if shape < 1:
        boost, shape = (1 - uniform(state)) ** (1 / shape), shape + 1
    d = shape - 1 / 3
    c = 1 / sqrt(9 * d)
    while True:
        x = normal(state)
        v = (1 + c * x) ** 3
        if v > 0 and log(1 - uniform(state)) < 0.5 * x * x + d - d * v + d * log(v):
            return boost * d * v
