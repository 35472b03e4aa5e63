"""A curve that is fitted to samples, and can then be asked for any x.

Whatever finds the parameters (`fit` in closed form, `descend` step by step), a basis and k numbers
are all there is to a curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutorial_dl.course.foundations.bases import Basis, samples
from tutorial_dl.course.foundations.loss import LeastSquares


@dataclass(frozen=True)
class Curve:
    """A fitted curve: `curve(x)` is `basis(x) @ parameters`."""

    basis: Basis
    parameters: np.ndarray  # (k,)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The curve's values, shape (s,), at x, shape (s,)."""
        return self.basis(samples(x)) @ self.parameters


def fit(basis: Basis, x: np.ndarray, y: np.ndarray) -> Curve:
    """The curve of `basis` with the least mean squared error on samples x, y.

    Parameters
    ----------
    basis : x of shape (s,) -> design matrix of shape (s, k).
    x, y : shape (s,).

    Raises
    ------
    ValueError : the samples do not determine the k parameters (see `solve_qr`).

    >>> from tutorial_dl.course.foundations import Polynomial
    >>> line = fit(Polynomial(1), np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
    >>> line.parameters.round(12)
    array([1., 2.])
    """
    return Curve(basis, LeastSquares.of(basis, x, y).minimiser())
