"""The expected training and held-out errors of a least-squares fit, before any sample is drawn.

Samples are y = f(x) + noise of standard deviation sigma. The fit's values at its own samples are
P y, where P = A A^+ projects onto the columns of A; its values at other x are B A^+ y, where B is
the design matrix there. The means over the noise are

    E[training error]  = |f - P f|^2 / s          + sigma^2 (1 - k / s)
    E[held-out error]  = |f_B - B A^+ f|^2 / m    + sigma^2 (1 + |B A^+|^2 / m)
                         what k columns cannot follow   noise, and what of it was fitted

(|.| of a matrix is the Frobenius norm.) With more parameters the first term falls and more noise is
fitted: a share k / s of it is missing from the training error and reappears in the held-out error.

Source: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, section 7.3.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tutorial_dl.course.foundations.bases import Basis


def expected_errors(
    basis: Basis,
    x: np.ndarray,
    x_held_out: np.ndarray,
    truth: Callable[[np.ndarray], np.ndarray],
    noise: float,
) -> tuple[float, float]:
    """Return the mean squared errors of the least-squares fit, averaged over the noise.

    Args:
        basis: of the curve to be fitted; k columns
        x: where it will be fitted, shape (s,), s >= k
        x_held_out: where it will be tested, shape (m,)
        truth: f, without noise
        noise: sigma, standard deviation of each y, in the unit of y

    Returns:
        (training error, held-out error), in the unit of y squared. Both include the noise of the
        samples they are measured on, so the best possible held-out error is sigma^2.

    Raises:
        ValueError: there are fewer samples than columns
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
