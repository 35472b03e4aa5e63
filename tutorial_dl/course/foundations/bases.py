"""Bases for curves y(x) = sum_j w_j phi_j(x): linear in w, but not necessarily in x.

A basis is a function from samples x, shape (s,), to the design matrix, shape (s, k), whose column
j is phi_j at every sample. The curve is then `basis(x) @ w`, and fitting it is linear algebra.
Any such function can serve as a basis; these four cover most curves.
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


@dataclass(frozen=True)
class Chebyshev:
    """Chebyshev polynomials T_0, ..., T_degree of x, with [low, high] scaled to [-1, 1].

    They give the same curves as Polynomial(degree), but their columns are nearly orthogonal. So the
    condition number is better, the solution more accurate and the descent faster. Recurrence, with
    u the scaled x: T_0 = 1, T_1 = u, T_(n+1) = 2 u T_n - T_(n-1).

    Args:
        degree: at least 0
        low, high: the interval that the samples cover, in the unit of x
    """

    degree: int
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self):
        _whole("degree", self.degree, least=0)
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got low={self.low}, high={self.high}")

    def __call__(self, x: np.ndarray) -> np.ndarray:
        u = (2 * samples(x) - self.low - self.high) / (self.high - self.low)  # (s,)
        columns = [np.ones_like(u), u]
        while len(columns) <= self.degree:
            columns.append(2 * u * columns[-1] - columns[-2])
        return np.stack(columns[: self.degree + 1], axis=1)  # (s, k)


@dataclass(frozen=True)
class Fourier:
    """The basis 1, then cos(2 pi h x / period) and sin(2 pi h x / period) for h = 1 ... harmonics.

    It has k = 2 harmonics + 1 columns, in the order 1, cos 1, sin 1, cos 2, sin 2, ...

    Args:
        harmonics: at least 0
        period: in the unit of x, above 0
    """

    harmonics: int
    period: float = 1.0  # in the unit of x

    def __post_init__(self):
        _whole("harmonics", self.harmonics, least=0)
        if not self.period > 0:
            raise ValueError(f"period must be positive, got {self.period}")

    def __call__(self, x: np.ndarray) -> np.ndarray:
        angle = 2 * np.pi * samples(x) / self.period  # (s,)
        columns = [np.ones_like(angle)]
        for harmonic in range(1, self.harmonics + 1):
            columns += [np.cos(harmonic * angle), np.sin(harmonic * angle)]
        return np.stack(columns, axis=1)  # (s, k)


@dataclass(frozen=True)
class Bumps:
    """The basis 1, then exp(-(x - c)^2 / (2 width^2)) for each centre c.

    It has k = len(centres) + 1 columns. Each parameter shapes the curve only near its own centre.

    Args:
        centres: in the unit of x
        width: in the unit of x, above 0
    """

    centres: tuple[float, ...]
    width: float  # in the unit of x

    def __post_init__(self):
        object.__setattr__(self, "centres", tuple(float(c) for c in self.centres))
        if not self.width > 0:
            raise ValueError(f"width must be positive, got {self.width}")

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = samples(x)
        away = (x[:, None] - np.array(self.centres)) / self.width  # (s, centres)
        return np.hstack([np.ones((len(x), 1)), np.exp(-(away**2) / 2)])  # (s, k)


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
