"""Least squares: the loss, its minimum in closed form, and the fitted curve.

The mean squared error of a linear model is a function of its parameters,

    L(w) = |A w - y|^2 / s        A design matrix (s, k), y targets (s,), s samples
    grad L = 2/s A^T (A w - y)
    Hessian H = 2/s A^T A         the same everywhere: L is a bowl

It is a mean, not a sum, so it does not grow with the number of samples, and one learning rate suits
all batch sizes. The gradient of a batch is that of the batch's own mean, an unbiased estimate of
the full gradient. At the minimum the gradient vanishes, which gives the normal equations

    A^T A w = A^T y

Solving them directly is fine on paper. On a computer it loses twice as many digits, because the
condition number of A^T A is the square of that of A: a polynomial of degree 12 on [0, 1] keeps next
to none. With A = Q R (columns of Q orthonormal, R upper triangular) they become

    R w = Q^T y

which has the same solution, with the condition number of A.

Source: Golub and Van Loan, Matrix Computations, 4th edition, sections 5.3.2 and 5.3.8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutorial_dl.course.foundations.bases import Basis, samples


class LeastSquares:
    """The loss L(w) = |A w - y|^2 / s.

    Args:
        design: A, shape (s, k)
        targets: y, shape (s,)

    Attributes:
        samples, parameters: s and k

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


def solve_qr(design: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the w that minimises |A w - y|, by A = Q R.

    Args:
        design: A, shape (s, k), s >= k
        targets: y, shape (s,)

    Returns:
        w, shape (k,).

    Raises:
        ValueError: there are fewer samples than parameters, or columns that are linearly dependent
            to within rounding, so that many w fit equally well

    Example:
        >>> A = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
        >>> solve_qr(A, np.array([1.0, 3.0, 5.0])).round(12)
        array([1., 2.])
    """
    s, k = design.shape
    if s < k:
        raise ValueError(
            f"{s} samples cannot determine {k} parameters; take a smaller basis or more samples"
        )

    Q, R = np.linalg.qr(design)  # (s, k), (k, k)

    # R has A's singular values. Below the rounding error of the largest, they are noise.
    singular = np.linalg.svd(R, compute_uv=False)  # (k,), largest first
    largest, smallest = singular[0], singular[-1]
    if smallest <= largest * s * np.finfo(float).eps:
        raise ValueError(
            f"the {k} columns depend on one another to within rounding (condition number"
            f" {largest / smallest if smallest else np.inf:.1g}): many parameters fit equally"
            " well; take a smaller basis, or more distinct x"
        )
    return np.linalg.solve(R, Q.T @ targets)


@dataclass(frozen=True)
class Curve:
    """A curve `basis(x) @ parameters`, found by `fit` in closed form or by `descend` in steps."""

    basis: Basis  # x, shape (s,) -> design matrix, shape (s, k)
    parameters: np.ndarray  # w, shape (k,)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the curve's values, shape (s,), at x, shape (s,)."""
        return self.basis(samples(x)) @ self.parameters


def fit(basis: Basis, x: np.ndarray, y: np.ndarray) -> Curve:
    """Return the curve of `basis` with the least mean squared error on samples x, y.

    Args:
        basis: function from x, shape (s,), to the design matrix, shape (s, k)
        x, y: the samples, shape (s,); they must determine the k parameters (see `solve_qr`)

    Example:
        >>> from tutorial_dl.course.foundations import Polynomial
        >>> line = fit(Polynomial(1), np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
        >>> line.parameters.round(12)
        array([1., 2.])
    """
    return Curve(basis, LeastSquares.of(basis, x, y).minimiser())
