"""The mean squared error of a linear model, as a function of its parameters.

    L(w) = |A w - y|^2 / s        A design matrix (s, k), y targets (s,), s samples
    grad L = 2/s A^T (A w - y)
    Hessian H = 2/s A^T A         the same everywhere: L is a bowl

It is a mean, not a sum, so it does not grow with the number of samples, and one learning rate suits
all batch sizes. The gradient of a batch is that of the batch's own mean, an unbiased estimate of
the full gradient.
"""

from __future__ import annotations

import numpy as np

from tutorial_dl.course.foundations.bases import Basis, samples
from tutorial_dl.course.foundations.closed_form import solve_qr


def mean_squared_error(predicted: np.ndarray, target: np.ndarray) -> float:
    """Return the mean of (predicted - target)^2, in the unit of y squared.

    Args:
        predicted, target: both of shape (s,), s >= 1

    Raises:
        ValueError: the shapes do not match, there are no samples, or values are not finite

    Example:
        >>> mean_squared_error(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
        2.0
    """
    predicted, target = samples(predicted), samples(target)
    if len(predicted) != len(target):
        raise ValueError(f"{len(predicted)} predictions do not match {len(target)} targets")
    if not len(target):
        raise ValueError("the mean squared error of no samples is undefined")
    return float(np.mean((predicted - target) ** 2))


class LeastSquares:
    """The loss L(w) = |A w - y|^2 / s.

    Args:
        design: A, shape (s, k)
        targets: y, shape (s,)

    Attributes:
        samples: s
        parameters: k

    Raises:
        ValueError: the shapes do not match, there are no samples, or values are not finite

    Example:
        >>> loss = LeastSquares(np.array([[1.0], [1.0]]), np.array([0.0, 2.0]))  # a constant
        >>> loss(np.array([0.0])), loss.gradient(np.array([0.0]))
        (2.0, array([-2.]))
    """

    def __init__(self, design: np.ndarray, targets: np.ndarray):
        self.design = np.asarray(design, dtype=float)  # (s, k)
        self.targets = samples(targets)  # (s,)
        if self.design.ndim != 2 or len(self.design) != len(self.targets):
            raise ValueError(
                f"design must have shape (s, k) with s = {len(self.targets)} targets,"
                f" got {self.design.shape}"
            )
        if not self.design.size:
            raise ValueError(f"at least 1 sample and 1 column are needed, got {self.design.shape}")
        if not np.isfinite(self.design).all():
            raise ValueError("the design matrix must be finite; is x scaled to about [-1, 1]?")
        self.samples, self.parameters = self.design.shape

    @classmethod
    def of(cls, basis: Basis, x: np.ndarray, y: np.ndarray) -> LeastSquares:
        """Return the loss of the curve `basis(x) @ w` on samples x, y, both of shape (s,)."""
        return cls(basis(samples(x)), y)

    def __call__(self, w: np.ndarray) -> float:
        """Return L(w), for w of shape (k,)."""
        return float(np.mean((self.design @ w - self.targets) ** 2))

    def gradient(self, w: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the gradient at w, shape (k,), of all samples or of those with indices `rows`."""
        A, y = self.design, self.targets
        if rows is not None:
            A, y = A[rows], y[rows]  # (b, k), (b,)
        return 2 / len(y) * (A.T @ (A @ w - y))

    def hessian(self) -> np.ndarray:
        """Return H = 2/s A^T A, shape (k, k): symmetric, without negative eigenvalues."""
        return 2 / self.samples * (self.design.T @ self.design)

    def minimiser(self) -> np.ndarray:
        """Return the w with the least loss, shape (k,), in closed form; errors as in `solve_qr`."""
        return solve_qr(self.design, self.targets)
