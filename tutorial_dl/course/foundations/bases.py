"""The basis of curves y(x) = sum_j w_j phi_j(x): linear in w, but not necessarily in x.

A basis is a function from samples x, shape (s,), to the design matrix, shape (s, k), whose column
j is phi_j at every sample. The curve is then `basis(x) @ w`, and fitting it is linear algebra.
Any such function can serve as a basis.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Basis = Callable[[np.ndarray], np.ndarray]  # (s,) -> (s, k)


@dataclass(frozen=True)
class Polynomial:
    """The basis 1, x, x^2, ..., x^degree: k = degree + 1 columns.

    Args:
        degree: at least 0

    Example:
        >>> Polynomial(2)(np.array([1.0, 2.0, 3.0]))
        array([[1., 1., 1.],
               [1., 2., 4.],
               [1., 3., 9.]])
    """

    degree: int

    def __post_init__(self):
        _whole("degree", self.degree, least=0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.vander(samples(x), self.degree + 1, increasing=True)  # (s, k)


def samples(x: np.ndarray) -> np.ndarray:
    """Return `x` as float64, shape (s,); raise ValueError for other shapes or non-finite values."""
    x = np.asarray(x, dtype=float)
    if x.ndim != 1:
        raise ValueError(f"samples must have shape (s,), got {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"samples must be finite, {(~np.isfinite(x)).sum()} of {len(x)} are not")
    return x


def _whole(name: str, value: int, least: int) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
