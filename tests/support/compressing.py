"""What tests of compression share: layers, gradients, and settings for several nodes."""

import math
import zlib
from typing import NamedTuple

import numpy as np
import pytest

SURROUNDINGS = [{}, {"NUMBA_KERNELS_WINDOW": "0"}, {"NUMBA_KERNELS_NODE": "2"}]
surroundings = pytest.mark.parametrize("env", SURROUNDINGS, ids=["node", "messages", "two nodes"])


class Layer(NamedTuple):
    offset: int
    shape: tuple[int, ...]


def layers_of(n):
    """A matrix, a bias, a gap and a convolution kernel, as far as they fit into n elements."""
    wanted = [Layer(0, (20, 12)), Layer(240, (12,)), Layer(256, (3, 3, 4, 5))]
    fit = [layer for layer in wanted if layer.offset + math.prod(layer.shape) <= n]
    return fit or [Layer(0, (n,))]


def same_bits(team, x, where=""):
    digests = team.comm.allgather(zlib.crc32(x.tobytes()))  # not by the tested code
    assert len(set(digests)) == 1, where


def gradients(ranks, n, dtype="float64", seed=0):
    """The vectors of all ranks, shape (ranks, n); every rank computes the same array."""
    return np.random.default_rng([seed, ranks, n]).normal(size=(ranks, n)).astype(dtype)
