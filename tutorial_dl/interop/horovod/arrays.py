"""Tensors as numpy arrays for sending: the dtype that carries each, and its place in a vector."""

from collections.abc import Sequence

import numpy as np

DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")
# Dtypes that a Team does not support are sent as wider ones that it does. Numbers stay exact.
CARRIERS = dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), "int32") | dict.fromkeys(
    ("uint32", "uint64"), "int64"
)
LINE = 16  # elements; a Team splits vectors at multiples of this


def share(n: int, ranks: int, rank: int) -> tuple[int, int]:
    """`rank`'s rows [first, last) of n: n // ranks each, the first n % ranks one more."""
    each, more = divmod(n, ranks)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


def describe(call: str, arrays: Sequence[np.ndarray], name: str | None, more="", rows=None) -> str:
    """A call in words, for example "allreduce(float32[3], op=Sum)"; `rows` replaces lengths."""
    shapes = [a.shape if rows is None else (rows, *a.shape[1:]) for a in arrays]
    listed = "+".join(
        f"{a.dtype.name}[{', '.join(map(str, shape))}]"
        for a, shape in zip(arrays, shapes, strict=True)
    )
    return f"{call}({listed}{more}{f', name={name!r}' if name else ''})"


def named_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        from ml_dtypes import bfloat16

        return np.dtype(bfloat16)
    return np.dtype(name)


def carrier(dtype: np.dtype) -> np.dtype:
    """The dtype in which `dtype` is sent; raises TypeError if there is none."""
    name = CARRIERS.get(dtype.name, dtype.name)
    if name not in DTYPES:
        known = ", ".join([*DTYPES, *CARRIERS])
        raise TypeError(f"no collectives of {dtype.name}; choose one of {known}")
    return named_dtype(name)


def by_dtype(arrays: Sequence[np.ndarray], widened: bool = False) -> dict[np.dtype, list[int]]:
    """{dtype for sending: indices of arrays}; half-precision arrays as float32 if `widened`."""
    groups: dict[np.dtype, list[int]] = {}
    for i, a in enumerate(arrays):
        dtype = carrier(a.dtype)
        if widened and dtype.itemsize == 2:
            dtype = np.dtype("float32")
        groups.setdefault(dtype, []).append(i)
    return groups


def join_flat(arrays: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.concatenate([a.reshape(-1) for a in arrays]).astype(dtype, copy=False)


def scale(x: np.ndarray, factor: float, out: np.ndarray) -> None:
    """out = factor x, in the dtype of `out`; integers are rounded towards zero."""
    if factor == 1.0:
        np.copyto(out, x, casting="unsafe")
    elif out.dtype.kind == "f":
        np.multiply(x, out.dtype.type(factor), out=out, casting="unsafe")
    else:
        np.copyto(out, x * factor, casting="unsafe")


def check_rows(arrays: Sequence[np.ndarray]) -> None:
    for a in arrays:
        if a.ndim == 0:
            raise ValueError("a scalar has no rows; reshape it to one dimension first")
