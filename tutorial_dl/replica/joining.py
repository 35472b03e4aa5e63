"""Layers' gradients, wherever TensorFlow has put them, into one flat vector: in one pass.

The pass reads and writes all of a gradient, and memory is what it waits for; so what else is to be
done with every element is done in it: scaling (mixed precision), and looking for NaN and infinity.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.compile import compiled
from numba_kernels.node import TILE, elements_at

# A float's bits without its sign, as an integer, grow with the number: infinity and NaN are last.
BITS = {
    np.dtype(np.float32): (np.dtype(np.int32), np.int32(0x7F800000)),
    np.dtype(np.float64): (np.dtype(np.int64), np.int64(0x7FF0000000000000)),
}


def join(flat: np.ndarray, offsets, addresses, sizes, factor=1.0, apart=(0, 0)) -> bool:
    """flat[offset : offset + size] = factor * the numbers at address, for each; are they finite?

    Args:
        flat: float32 or float64, (n,).
        offsets, addresses, sizes: int64, of one length. The numbers are of flat's dtype,
            contiguous; whoever calls sees to it that they stay while this runs.
        factor: Of no use for numbers so large that multiplied they are infinite.
        apart: [first, last) of flat that is not written; what belongs there is only looked at.
    """
    integer, infinity = BITS[flat.dtype]
    bits, factor = flat.view(integer), flat.dtype.type(factor)
    return bool(joined(flat, bits, offsets, addresses, sizes, factor, infinity, *apart))


@compiled
def joined(flat, bits, offsets, addresses, sizes, factor, infinity, first, last):
    """See `join`. bits: the same memory as flat."""
    worst = bits.dtype.type(0)
    for part in range(offsets.size):
        offset, size = offsets[part], sizes[part]
        source = elements_at(addresses[part], flat, size)
        source_bits = elements_at(addresses[part], bits, size)
        for low, high in ((0, min(size, first - offset)), (max(0, last - offset), size)):
            for start in range(low, high, TILE):
                end = min(start + TILE, high)
                worst = max(worst, largest(source_bits[start:end], infinity))  # into the cache
                scaled_copy(flat[offset + start : offset + end], source[start:end], factor)
    # What stays apart is read next by the step, from its beginning: so it is looked at last, and
    # backwards, and the step finds it in the cache.
    for part in range(offsets.size - 1, -1, -1):
        offset, size = offsets[part], sizes[part]
        source_bits = elements_at(addresses[part], bits, size)
        low, end = max(0, first - offset), min(size, last - offset)
        while end > low:
            start = max(low, end - TILE)
            worst = max(worst, largest(source_bits[start:end], infinity))
            end = start
    return worst < infinity


@compiled
def scaled_copy(target, source, factor):
    """target = factor * source"""
    for i in range(target.size):
        target[i] = factor * source[i]


@compiled
def largest(bits, infinity):
    """The greatest of the numbers without their signs, as bits."""
    most = bits.dtype.type(0)
    mask = infinity | (infinity - bits.dtype.type(1))  # all but the sign
    for i in range(bits.size):
        most = max(most, bits[i] & mask)
    return most
