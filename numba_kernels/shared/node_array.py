"""The addresses and numbers that shared-memory kernels need, in one small array of integers.

Passing an array to compiled code takes some 0.2 microseconds, as long as a whole barrier. So the
board, the table of windows and the scratch tile are passed as addresses, in an array that is made
once per team.
"""

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from ..jit.compile import compiled
from ..jit.halves import BFLOAT16, FLOAT16
from .window import FIRST, MINE, MOST, NBYTES, NUMBER, STRIDE

WORDS = 32  # int64 words from one rank's part of the board to the next: four cache lines, so that
# fetching one rank's first line does not prefetch another's
LINE = 16  # elements: 64 bytes of float32; two ranks never share a cache line of a slice
TILE = 2048  # elements of scratch, which stay in the first-level cache

# The stage: a staging buffer for arrays outside all windows (staged.py), with a part per rank. A
# part has two buffers each of SHORT, CHUNK and LEAD bytes; its pages are not a power of two.
# If there are more ranks than cores, a barrier costs more, so a piece fills all of CHUNK; otherwise
# only CACHED bytes of it, which stay in the cache.
SHORT, CHUNK, CACHED, LEAD = 1 << 11, 1 << 20, 1 << 17, 1 << 16
STAGE_STRIDE = 2 * (SHORT + CHUNK + LEAD) + 4096

CROWDED_SPINS = 20  # tries of a wait before it yields, where ranks outnumber the cores

# Words of the array; PATIENCE is in microseconds; AT is the progress of a resumable kernel.
BOARD, RANKS, RANK, TABLE, SCRATCH, AT, SPINS, PATIENCE, STAGE, PIECE = range(10)


def shared_bytes(ranks: int) -> int:
    return ranks * (WORDS * 8 + STAGE_STRIDE)


def node_array(
    shared: np.ndarray, ranks: int, rank: int, table: np.ndarray, crowded: bool, patience: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the array, and the scratch tile that it points to; the caller must keep both.

    `shared` are `shared_bytes(ranks)` bytes, `table` is that of a Window, `patience` in seconds.
    """
    tile = np.zeros(TILE + 8, np.float64)
    node = np.zeros(10, np.int64)
    node[[BOARD, RANKS, RANK]] = shared.ctypes.data, ranks, rank
    node[STAGE] = shared.ctypes.data + ranks * WORDS * 8
    node[[TABLE, SCRATCH]] = table.ctypes.data, -(-tile.ctypes.data // 64) * 64
    node[[SPINS, PATIENCE]] = CROWDED_SPINS if crowded else 2000, round(1e6 * patience)
    node[PIECE] = CHUNK if crowded else CACHED
    return node, tile


def _to(kind):
    """Return what generates the code of a function address -> pointer of type `kind`."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return generate


@intrinsic
def pointer(typingctx, address, like):
    """Return `address` as a pointer to elements of the array `like`'s dtype."""
    kind = types.CPointer(like.dtype)
    return kind(types.intp, like), _to(kind)


@intrinsic
def pointer_to(typingctx, address, number):
    """Return `address` as a pointer to numbers of the NumPy type `number`."""
    kind = types.CPointer(number.instance_type)
    return kind(types.intp, number), _to(kind)


@intrinsic
def wide_pointer(typingctx, address, like):
    """Return `address` as a pointer to `like`'s dtype, or to float32 if that is a half."""
    kind = types.CPointer(types.float32 if like.dtype in (FLOAT16, BFLOAT16) else like.dtype)
    return kind(types.intp, like), _to(kind)


@compiled
def row_of(address, x):
    return elements_at(address, x, x.size)


@compiled
def elements_at(address, x, n):
    return carray(pointer(address, x), (n,))


@compiled
def board_of(node):
    return carray(pointer(node[BOARD], node), (node[RANKS], WORDS))


@compiled
def tile_like(node, x):
    """Return scratch of TILE elements of `x`'s dtype, or of float32 for halves."""
    return carray(wide_pointer(node[SCRATCH], x), (TILE,))


@compiled
def locate(node, x):
    """Find `x` in the windows: (address of rank 0's counterpart, bytes from rank to rank, place).

    The place is a number from 1 to 2^23: the same on all ranks if `x` is the same part of the same
    window on all of them, and almost always different otherwise. Returns (0, 0, 0) if `x` does not
    lie in a window.
    """
    table = carray(pointer(node[TABLE], node), (MOST + 1, 5))
    address, nbytes = x.ctypes.data, x.size * x.itemsize
    for line in range(table[MOST, NUMBER]):
        offset = address - table[line, MINE]
        if offset >= 0 and offset < table[line, NBYTES] >= offset + nbytes:
            place = 1 + (1_000_003 * table[line, NUMBER] + offset // 4) % 8_388_592
            return table[line, FIRST] + offset, table[line, STRIDE], place
    return 0, 0, 0
