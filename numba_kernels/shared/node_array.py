"""What kernels on a node's shared memory work with, in one small array of integers.

Handing an array to compiled code takes some 0.2 microseconds, as long as a whole barrier: so the
board, the table of windows and the scratch tile go over as addresses, in an array that is made once
for each team.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from ..jit.compile import compiled
from ..jit.halves import BFLOAT16, FLOAT16
from .window import FIRST, MINE, MOST, NBYTES, NUMBER, STRIDE

WORDS = 32  # int64 words from one rank's part of the board to the next: four cache lines, so that
# no rank's first one is fetched along with another's
LINE = 16  # elements: 64 bytes of float32; two ranks never share a cache line of a slice
TILE = 2048  # elements of scratch: stay in the first-level cache

# The stage: a part for each rank, through which arrays go that lie in no window (staged.py). It has
# two buffers of SHORT bytes and two of CHUNK bytes, and is no power of two of pages long. Ranks
# that outnumber the cores fill all of CHUNK, for which a barrier costs them more; others a part,
# which stays in the cache.
SHORT, CHUNK, CACHED = 1 << 11, 1 << 20, 1 << 17
STAGE_STRIDE = 2 * (SHORT + CHUNK) + 4096

# Words of the array; PATIENCE in microseconds, AT where a resumable kernel keeps its place.
BOARD, RANKS, RANK, TABLE, SCRATCH, AT, SPINS, PATIENCE, STAGE, PIECE = range(10)


def shared_bytes(ranks: int) -> int:
    """What the board and the stage take, of memory that the ranks share."""
    return ranks * (WORDS * 8 + STAGE_STRIDE)


def node_array(
    shared: np.ndarray, ranks: int, rank: int, table: np.ndarray, crowded: bool, patience: float
) -> tuple[np.ndarray, np.ndarray]:
    """The array, and the scratch tile that it points to (keep both).

    `shared`: `shared_bytes(ranks)` bytes, which begin with the board; `crowded`: there are more
    ranks than cores.
    """
    tile = np.zeros(TILE + 8, np.float64)
    node = np.zeros(10, np.int64)
    node[[BOARD, RANKS, RANK]] = shared.ctypes.data, ranks, rank
    node[STAGE] = shared.ctypes.data + ranks * WORDS * 8
    node[[TABLE, SCRATCH]] = table.ctypes.data, -(-tile.ctypes.data // 64) * 64
    node[[SPINS, PATIENCE]] = 20 if crowded else 2000, round(1e6 * patience)
    node[PIECE] = CHUNK if crowded else CACHED
    return node, tile


@intrinsic
def pointer(typingctx, address, like):
    """`address` as a pointer to elements of the array `like`'s dtype."""
    kind = types.CPointer(like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.intp, like), generate


@intrinsic
def wide_pointer(typingctx, address, like):
    """`address` as a pointer to numbers that elements of `like` are computed with."""
    kind = types.CPointer(types.float32 if like.dtype in (FLOAT16, BFLOAT16) else like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.intp, like), generate


@compiled
def row_of(address, x):
    """The array like `x` that begins at `address`."""
    return elements_at(address, x, x.size)


@compiled
def elements_at(address, x, n):
    """`n` elements of `x`'s dtype that begin at `address`."""
    return carray(pointer(address, x), (n,))


@compiled
def board_of(node):
    """The board, shape (ranks, WORDS)."""
    return carray(pointer(node[BOARD], node), (node[RANKS], WORDS))


@compiled
def tile_like(node, x):
    """Scratch of TILE elements of `x`'s dtype, of float32 for halves."""
    return carray(wide_pointer(node[SCRATCH], x), (TILE,))


@compiled
def locate(node, x):
    """Where `x` lies: (address of rank 0's counterpart, bytes from rank to rank, its place).

    The place is a number from 1 up to 2^23, the same on all ranks if they mean the same part of the
    same window, and hardly ever otherwise. (0, 0, 0) if `x` lies in no window.
    """
    table = carray(pointer(node[TABLE], node), (MOST + 1, 5))
    address, nbytes = x.ctypes.data, x.size * x.itemsize
    for line in range(table[MOST, NUMBER]):
        offset = address - table[line, MINE]
        if offset >= 0 and offset < table[line, NBYTES] >= offset + nbytes:
            place = 1 + (1_000_003 * table[line, NUMBER] + offset // 4) % 8_388_592
            return table[line, FIRST] + offset, table[line, STRIDE], place
    return 0, 0, 0
