"""The parameters of least squared error, without a single step of descent.

At the minimum the gradient 2/s A^T (A w - y) vanishes, which gives the normal equations

    A^T A w = A^T y

Solving them as they stand is fine on paper. On a computer A^T A squares the condition number of
A, and so loses twice the digits: a polynomial of degree 12 on [0, 1] keeps next to none. With
A = Q R (columns of Q at right angles, R upper triangular) they become

    R w = Q^T y

which has the same solution and never squares anything.

Source: Golub and Van Loan, Matrix Computations, 4th edition, sections 5.3.2 and 5.3.8.
"""

from __future__ import annotations

import numpy as np


def solve_qr(design: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """w of least |A w - y|, by A = Q R.

    Parameters
    ----------
    design : A, shape (s, k), s >= k.
    targets : y, shape (s,).

    Returns
    -------
    w, shape (k,).

    Raises
    ------
    ValueError : fewer samples than parameters, or columns that depend on one another to
        within rounding, so that many w fit equally well.
    """
    s, k = design.shape
    if s < k:
        raise ValueError(
            f"{s} samples cannot determine {k} parameters: take a smaller basis or more samples"
        )

    Q, R = np.linalg.qr(design)  # (s, k), (k, k)

    # R has A's singular values. Below the rounding error of the largest, they are noise.
    singular = np.linalg.svd(R, compute_uv=False)  # (k,), largest first
    largest, smallest = singular[0], singular[-1]
    if smallest <= largest * s * np.finfo(float).eps:
        raise ValueError(
            f"the {k} columns depend on one another to within rounding (condition number"
            f" {largest / smallest if smallest else np.inf:.1g}): many parameters fit equally"
            " well; take a smaller basis, more distinct x, or Chebyshev for Polynomial"
        )
    return np.linalg.solve(R, Q.T @ targets)


def solve_normal_equations(design: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """w from A^T A w = A^T y as it stands: good for seeing it, not for using it (see the top)."""
    return np.linalg.solve(design.T @ design, design.T @ targets)
