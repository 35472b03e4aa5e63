"""Allreduce: every rank brings a vector, every rank leaves with the reduction of all of them.

One file an algorithm, all behind one call:

    allreduce(team, x, op="sum", algorithm="auto")

"auto" takes the shared memory of the node where `x` lies in it (`team.empty`), and messages
otherwise: a tree for short vectors, where latency counts, the ring for long ones, where bytes do.
"""

from __future__ import annotations

import numpy as np

from .. import calls
from . import naive, ring, shared_memory, tree
from .elementwise import op_code

MESSAGES = {"naive": naive.allreduce, "tree": tree.allreduce, "ring": ring.allreduce}
ALGORITHMS = (*MESSAGES, "shared_memory")
SHORT = 16384  # bytes


def allreduce(team, x: np.ndarray, op: str = "sum", algorithm: str = "auto") -> np.ndarray:
    """Replace `x` by its reduction over all ranks of `team`, in place; returns `x`.

    Args:
        x: contiguous float32 or float64 array, same shape and dtype on every rank.
        op: "sum", "mean", "min" or "max", element by element. NaN and infinity pass through.
        algorithm: "auto", "naive", "tree", "ring" or "shared_memory" (arrays of `team.empty`).

    The result is the same, bit for bit, on all ranks, and on every run with the same ranks.

    Raises: PeerError, MismatchError; TypeError and ValueError for arguments that can't be used.
    """
    flat = calls.vector(x)
    calls.check_op(op)
    if algorithm != "auto" and algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; auto or one of {', '.join(ALGORITHMS)}")
    if team.size == 1:
        return x
    found = team.find(flat)
    if algorithm == "auto":
        algorithm = "shared_memory" if found else "tree" if x.nbytes <= SHORT else "ring"
    if algorithm == "shared_memory" and found is None:
        raise ValueError("shared_memory needs an array made by team.empty on a single node")

    factor = 1.0 / team.size if op == "mean" else 1.0
    call = calls.encode("allreduce", flat.dtype, op)
    if algorithm == "shared_memory":
        rows, first = found
        tile = team.scratch(shared_memory.TILE, flat.dtype)
        team.on_board(
            call, flat.size, shared_memory.allreduce,
            (rows, first, flat.size, op_code(op), factor, tile),
        )  # fmt: skip
    else:
        incoming = team.scratch(flat.size, flat.dtype)
        team.by_messages(
            call, flat.size, flat.dtype, MESSAGES[algorithm],
            (flat, incoming, op_code(op), factor),
        )  # fmt: skip
    return x
