"""Least squares in closed form: by QR, and by the normal equations to see why they are worse.

At the minimum the gradient 2/s A^T (A w - y) vanishes, which gives the normal equations

    A^T A w = A^T y

Solving them directly is fine on paper. On a computer it loses twice as many digits, because the
condition number of A^T A is the square of that of A: a polynomial of degree 12 on [0, 1] keeps next
to none. With A = Q R (columns of Q orthonormal, R upper triangular) they become

    R w = Q^T y

which has the same solution, with the condition number of A.

Source: Golub and Van Loan, Matrix Computations, 4th edition, sections 5.3.2 and 5.3.8.
"""

from __future__ import annotations

import numpy as np


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
            " well; take a smaller basis, more distinct x, or Chebyshev instead of Polynomial"
        )
    return np.linalg.solve(R, Q.T @ targets)


def solve_normal_equations(design: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return w from A^T A w = A^T y, solved directly: to see what it loses, not for use.

    Args and result as in `solve_qr`.
    """
    return np.linalg.solve(design.T @ design, design.T @ targets)
