"""`join`: copy the layers' gradients from TensorFlow's memory into one flat vector, in one pass.

The pass reads and writes the whole gradient and is limited by memory bandwidth. So it also does
everything else that needs each element: scaling (mixed precision), checking for NaN and infinity.
"""

import numpy as np

from numba_kernels.jit.compile import compiled
from numba_kernels.shared.node_array import TILE, elements_at

# A float's bits without the sign, read as an integer, order like the numbers; infinity and NaN are
# the largest.
BITS = {
    np.dtype(np.float32): (np.dtype(np.int32), np.int32(0x7F800000)),
    np.dtype(np.float64): (np.dtype(np.int64), np.int64(0x7FF0000000000000)),
}


def join(flat: np.ndarray, offsets, addresses, sizes, factor=1.0, apart=(0, 0)) -> bool:
    """Set flat[offset : offset + size] = factor * (numbers at address), for each part.

    The numbers have the dtype of `flat`, float32 or float64, and the caller keeps them in memory.
    Overflow in the product is not detected. [first, last) of flat, `apart`, is not written; numbers
    for it are only checked. Returns whether all numbers at the addresses are finite.
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
                # This also loads them into the cache.
                worst = max(worst, largest(source_bits[start:end], infinity))
                scaled_copy(flat[offset + start : offset + end], source[start:end], factor)
    # The step next reads the numbers that stay apart, from their beginning. So check them last and
    # backwards, so that the step finds them in the cache.
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
    for i in range(target.size):
        target[i] = factor * source[i]


@compiled
def largest(bits, infinity):
    """The largest absolute value, as bits."""
    most = bits.dtype.type(0)
    mask = infinity | (infinity - bits.dtype.type(1))  # all bits but the sign
    for i in range(bits.size):
        most = max(most, bits[i] & mask)
    return most
