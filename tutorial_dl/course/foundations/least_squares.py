"""Least squares: the loss, its minimum in closed form, the fitted curve, and its expected errors.

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

Sources: Golub and Van Loan, Matrix Computations, 4th edition, sections 5.3.2 and 5.3.8; for the
expected errors, Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, section 7.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tutorial_dl.course.foundations.bases import Basis, samples


def mean_squared_error(predicted: np.ndarray, target: np.ndarray) -> float:
    """Return the mean of (predicted - target)^2, in the unit of y squared.

    Args:
        predicted, target: both of shape (s,), s >= 1

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


def solve_normal_equations(design: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return w from A^T A w = A^T y, solved directly: to see what it loses, not for use.

    Args and result as in `solve_qr`.
    """
    return np.linalg.solve(design.T @ design, design.T @ targets)


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


def expected_errors(
    basis: Basis,
    x: np.ndarray,
    x_held_out: np.ndarray,
    truth: Callable[[np.ndarray], np.ndarray],
    noise: float,
) -> tuple[float, float]:
    """Return the mean squared errors of the least-squares fit, averaged over the noise.

    Samples are y = f(x) + noise of standard deviation sigma. The fit's values at its own samples
    are P y, where P = A A^+ projects onto the columns of A; its values at other x are B A^+ y,
    where B is the design matrix there. The means over the noise are

        E[training error]  = |f - P f|^2 / s          + sigma^2 (1 - k / s)
        E[held-out error]  = |f_B - B A^+ f|^2 / m    + sigma^2 (1 + |B A^+|^2 / m)
                             what k columns cannot follow   noise, and what of it was fitted

    (|.| of a matrix is the Frobenius norm.) With more parameters the first term falls and more
    noise is fitted: a share k / s of it is missing from the training error and reappears in the
    held-out error.

    Args:
        basis: of the curve to be fitted; k columns
        x: where it will be fitted, shape (s,), s >= k
        x_held_out: where it will be tested, shape (m,)
        truth: f, without noise
        noise: sigma, standard deviation of each y, in the unit of y

    Returns:
        (training error, held-out error), in the unit of y squared. Both include the noise of the
        samples they are measured on, so the best possible held-out error is sigma^2.
    """
    A, B = basis(x), basis(x_held_out)  # (s, k), (m, k)
    (s, k), m = A.shape, len(B)
    if s < k:
        raise ValueError(f"{s} samples cannot determine {k} parameters")
    f, f_held_out = truth(x), truth(x_held_out)  # (s,), (m,)

    Q, R = np.linalg.qr(A)  # A^+ = R^-1 Q^T
    maps = np.linalg.solve(R.T, B.T).T  # (m, k): B R^-1, so that B A^+ = maps Q^T

    missed = f - Q @ (Q.T @ f)
    missed_held_out = f_held_out - maps @ (Q.T @ f)
    training = np.mean(missed**2) + noise**2 * (1 - k / s)
    held_out = np.mean(missed_held_out**2) + noise**2 * (1 + np.sum(maps**2) / m)
    return float(training), float(held_out)
