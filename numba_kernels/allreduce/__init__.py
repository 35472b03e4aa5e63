"""Allreduce: every rank brings a vector, every rank leaves with the reduction of all of them.

One file an algorithm, all behind one call:

    allreduce(team, x, op="sum", algorithm="auto")

"auto" takes the shared memory of the node where `x` lies in it (`team.empty`), and messages
otherwise: recursive doubling for short vectors, where latency counts, halving and doubling for long
ones, where bytes do.
"""

from __future__ import annotations

import numpy as np

from .. import calls
from . import naive, rabenseifner, recursive_doubling, ring, shared_memory, tree
from .elementwise import op_code

MESSAGES = {
    "naive": naive.allreduce,
    "tree": tree.allreduce,
    "ring": ring.allreduce,
    "recursive_doubling": recursive_doubling.allreduce,
    "rabenseifner": rabenseifner.allreduce,
}
ALGORITHMS = calls.ALGORITHMS
SHORT = 16384  # bytes
# By dtype, operation and algorithm: how the call is announced to others.
CALLS = {
    (dtype.num, op, algorithm): calls.encode("allreduce", dtype, op, algorithm=algorithm)
    for dtype in calls.DTYPES
    for op in calls.OPS
    for algorithm in ALGORITHMS
}


def allreduce(team, x: np.ndarray, op: str = "sum", algorithm: str = "auto") -> np.ndarray:
    """Replace `x` by its reduction over all ranks of `team`, in place; returns `x`.

    Args:
        x: contiguous float32 or float64 array, same shape and dtype on every rank.
        op: "sum", "mean", "min" or "max", element by element. NaN and infinity pass through.
        algorithm: "auto", or one of `ALGORITHMS`; "shared_memory" needs an array of `team.empty`.

    The result is the same, bit for bit, on all ranks, and on every run with the same ranks.

    Raises: PeerError, MismatchError; TypeError and ValueError for arguments that can't be used.
    """
    usable = type(x) is np.ndarray and x.flags.carray
    call = CALLS.get((x.dtype.num, op, "shared_memory")) if usable else None
    if call is None:
        calls.vector(x)  # one of these knows what is wrong
        calls.check_op(op)
    if algorithm != "auto" and algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; auto or one of {', '.join(ALGORITHMS)}")
    if team.size == 1:
        return x
    flat = x if x.ndim == 1 else x.reshape(-1)
    number = op_code(op)
    factor = 1.0 / team.size if op == "mean" else 1.0
    if algorithm in ("auto", "shared_memory"):
        if team.on_node(shared_memory.allreduce, call, flat, number, factor):
            return x
        if algorithm == "shared_memory":
            raise ValueError("shared_memory needs an array made by team.empty on a single node")
        algorithm = "recursive_doubling" if x.nbytes <= SHORT else "rabenseifner"
    incoming = team.scratch(flat.size, flat.dtype)
    call = CALLS[x.dtype.num, op, algorithm]
    team.by_messages(
        call, flat.size, flat.dtype, MESSAGES[algorithm], (flat, incoming, number, factor)
    )
    return x
