"""What kernels on a node's shared memory work with, in one small array of integers.

Handing an array to compiled code takes some 0.2 microseconds, as long as a whole barrier: so the
board, the table of windows and the scratch tile go over as addresses, in an array that is made once
for each team.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from .compile import compiled
from .window import FIRST, MINE, MOST, NBYTES, NUMBER, STRIDE

WORDS = 32  # int64 words from one rank's part of the board to the next: four cache lines, so that
# no rank's first one is fetched along with another's
TILE = 2048  # elements of scratch: stay in the first-level cache

# Words of the array; PATIENCE in microseconds, AT where a resumable kernel keeps its place.
BOARD, RANKS, RANK, TABLE, SCRATCH, AT, SPINS, PATIENCE = range(8)


def node_array(
    board: np.ndarray, ranks: int, rank: int, table: np.ndarray, spins: int, patience: float
) -> tuple[np.ndarray, np.ndarray]:
    """The array, and the scratch tile that it points to (keep both)."""
    tile = np.zeros(TILE + 8, np.float64)
    node = np.zeros(8, np.int64)
    node[[BOARD, RANKS, RANK]] = board.ctypes.data, ranks, rank
    node[[TABLE, SCRATCH]] = table.ctypes.data, -(-tile.ctypes.data // 64) * 64
    node[[SPINS, PATIENCE]] = spins, round(1e6 * patience)
    return node, tile


@intrinsic
def pointer(typingctx, address, like):
    """`address` as a pointer to elements of the array `like`'s dtype."""
    kind = types.CPointer(like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.intp, like), generate


@compiled
def row_of(address, x):
    """The array like `x` that begins at `address`."""
    return carray(pointer(address, x), (x.size,))


@compiled
def board_of(node):
    """The board, shape (ranks, WORDS)."""
    return carray(pointer(node[BOARD], node), (node[RANKS], WORDS))


@compiled
def tile_like(node, x):
    """Scratch of TILE elements of `x`'s dtype."""
    return carray(pointer(node[SCRATCH], x), (TILE,))


@compiled
def locate(node, x):
    """Where `x` lies: (address of rank 0's counterpart, bytes from rank to rank, its place).

    The place is a number below 2^23, the same on all ranks if they mean the same part of the same
    window, and hardly ever otherwise. (0, 0, 0) if `x` lies in no window.
    """
    table = carray(pointer(node[TABLE], node), (MOST, 5))
    address, nbytes = x.ctypes.data, x.size * x.itemsize
    for line in range(MOST):
        offset = address - table[line, MINE]
        if offset >= 0 and offset < table[line, NBYTES] >= offset + nbytes:
            place = (1_000_003 * table[line, NUMBER] + offset // 4) % 8_388_593
            return table[line, FIRST] + offset, table[line, STRIDE], place
    return 0, 0, 0
