"""Encode a collective call as two integers, so that ranks can detect that their calls differ.

One integer packs kind, dtype, operation and root; the other is the length. On a node they lie
beside the flag that announces a rank's arrival; in messages a hash of them is the tag.
"""

from functools import cache

import numpy as np

KINDS = (
    "barrier", "allreduce", "reduce_scatter", "allgather", "broadcast", "empty", "split", "step",
    "alltoall", "measure", "Star", "scatter", "exchange",
)  # fmt: skip
# By name: bfloat16 is a dtype of the package ml_dtypes, which may not be installed.
DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")
OPS = ("sum", "mean", "min", "max", "product")
ALGORITHMS = (
    "shared_memory", "naive", "tree", "ring", "recursive_doubling", "rabenseifner", "two_level",
    "mpi",
)  # fmt: skip

# In these calls the ranks first gather all arguments, and a difference does not fail the team.
TOLD = {KINDS.index("empty"), KINDS.index("Star")}

MARK = 0x7FFF  # marks the end of a communicator's messages (messages.py); no call has this tag


@cache
def encode(
    kind: str, dtype=None, op: str | None = None, root: int = 0, algorithm: str | None = None
) -> int:
    d = 0 if dtype is None else 1 + DTYPES.index(np.dtype(dtype).name)
    o = 0 if op is None else 1 + OPS.index(op)
    a = 0 if algorithm is None else 1 + ALGORITHMS.index(algorithm)
    return KINDS.index(kind) | d << 8 | o << 16 | a << 24 | root << 32


def describe(call: int, length: int) -> str:
    """Return the call as a user would write it: "allreduce(float32[1000], op='sum', ...)"."""
    kind, d, o, a, root = *(call >> shift & 255 for shift in (0, 8, 16, 24)), call >> 32
    inside = [f"{DTYPES[d - 1]}[{length}]"] if d else []
    inside += [f"op={OPS[o - 1]!r}"] if o else []
    inside += [f"algorithm={ALGORITHMS[a - 1]!r}"] if a else []
    inside += [f"root={root}"] if KINDS[kind] in ("broadcast", "scatter") else []
    return f"{KINDS[kind]}({', '.join(inside)})"


def differ(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether ranks waiting in these two calls, each (call, length), would wait for ever."""
    kind = one[0] & 255
    return kind != other[0] & 255 if kind in TOLD else tuple(one) != tuple(other)


def tag(call: int, length: int, sequence: int) -> int:
    """Return a 15-bit message tag (MPI guarantees no more), which differs if the calls differ."""
    mixed = (call * 0x9E3779B1 + length * 0x85EBCA77 + sequence * 0xC2B2AE3D) & 0xFFFFFFFF
    return (mixed ^ mixed >> 15) % MARK


@cache
def known(dtype: np.dtype) -> bool:
    return dtype.name in DTYPES and dtype.isnative


def vector(x, what: str = "x") -> np.ndarray:
    """Return `x` as a flat view to work on in place, or raise TypeError or ValueError."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{what} must be a numpy array, got a {type(x).__name__}")
    if not known(x.dtype):
        raise TypeError(f"dtype of {what} must be one of {', '.join(DTYPES)}, got {x.dtype}")
    if not x.flags.c_contiguous or not x.flags.writeable:
        raise ValueError(f"{what} must be contiguous and writeable: it is changed in place")
    return x.reshape(-1)


def check_op(op: str) -> None:
    if op not in OPS:
        raise ValueError(f"unknown op {op!r}; choose one of {', '.join(OPS)}")
