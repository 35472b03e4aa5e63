"""Fit a curve to samples, and evaluate it at any x.

A curve consists of a basis and k parameters, whether `fit` finds them in closed form or `descend`
step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutorial_dl.course.foundations.bases import Basis, samples
from tutorial_dl.course.foundations.loss import LeastSquares


@dataclass(frozen=True)
class Curve:
    """A fitted curve: `curve(x)` is `basis(x) @ parameters`.

    Args:
        basis: function from x, shape (s,), to the design matrix, shape (s, k)
        parameters: w, shape (k,)
    """

    basis: Basis
    parameters: np.ndarray  # (k,)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the curve's values, shape (s,), at x, shape (s,)."""
        return self.basis(samples(x)) @ self.parameters


def fit(basis: Basis, x: np.ndarray, y: np.ndarray) -> Curve:
    """Return the curve of `basis` with the least mean squared error on samples x, y.

    Args:
        basis: function from x, shape (s,), to the design matrix, shape (s, k)
        x, y: the samples, shape (s,)

    Returns:
        The fitted Curve.

    Raises:
        ValueError: the samples do not determine the k parameters (see `solve_qr`)

    Example:
        >>> from tutorial_dl.course.foundations import Polynomial
        >>> line = fit(Polynomial(1), np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
        >>> line.parameters.round(12)
        array([1., 2.])
    """
    return Curve(basis, LeastSquares.of(basis, x, y).minimiser())
