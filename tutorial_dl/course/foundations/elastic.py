"""Workers on springs, on parabolas: where they come to rest, when they swing, how they average.

The synchronous form of elastic averaging, with p workers, alpha = beta / p, and a curvature h:

    x_i' = x_i - eta h (x_i - a_i) - alpha (x_i - c);   c' = c + alpha sum_i (x_i - c)

a_i is where the data of worker i has its minimum. Only two things move: the workers' mean m with
the center c, by a matrix of 2 x 2, and the workers' differences from their mean, by a factor:

    (m, c)' = A (m, c) + ...    A = [[1 - eta h - alpha, alpha], [beta, 1 - beta]]
    (x_i - m)' = (1 - eta h - alpha) (x_i - m) + ...

Zhang, Choromanska, LeCun, arXiv 1412.6651, equations 2 and 3; section 3 studies the same matrices.
"""

from __future__ import annotations

import numpy as np


def elastic_growth(rate: float, moving_rate: float, workers: int, curvature: float) -> float:
    """What a round multiplies the distance from rest by in the end; above 1 it diverges.

    Parameters
    ----------
    rate : eta.
    moving_rate : beta.
    workers : p, 1 or more.
    curvature : h; 0 where the loss is flat (there 1, or more, is the factor).
    """
    matrix = _matrix(rate, moving_rate, workers, curvature)
    # The factor of the differences is on A's diagonal, so between its eigenvalues (A is symmetric
    # but for the units of m and c): it never decides.
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def resting_places(
    rate: float, moving_rate: float, minima: np.ndarray, curvature: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where workers and center stand still: shapes (p, n) and (n,).

    There a worker's step, eta h (x_i - a_i), and its spring, alpha (x_i - c), cancel. The center is
    in the middle of the minima:

        x_i = c + eta h / (eta h + alpha) (a_i - c)

    Parameters
    ----------
    minima : a_i, shape (p, n).
    curvature : h of each coordinate, shape (n,), above 0.
    """
    minima, pull = np.asarray(minima, float), rate * np.asarray(curvature, float)
    center, alpha = minima.mean(axis=0), moving_rate / len(minima)
    return center + pull / (pull + alpha) * (minima - center), center


def center_deviation(
    rate: float, moving_rate: float, workers: int, curvature: float = 1.0, noise: float = 1.0
) -> float:
    """The standard deviation of the center, once all have come to rest, about its mean.

    `noise` is that of one worker's gradient, independent from worker to worker and step to step. It
    enters m as a variance of Q = eta^2 noise^2 / p a round; the covariance of (m, c) is the C with
    C = A C A^T + Q, found as a system of linear equations.

    Raises
    ------
    ValueError : it never comes to rest.
    """
    if elastic_growth(rate, moving_rate, workers, curvature) >= 1:
        raise ValueError(
            f"learning rate {rate}, moving rate {moving_rate}, {workers} workers: this diverges"
        )
    A = _matrix(rate, moving_rate, workers, curvature)
    Q = np.array([(rate * noise) ** 2 / workers, 0, 0, 0])
    C = np.linalg.solve(np.eye(4) - np.kron(A, A), Q).reshape(2, 2)
    return float(np.sqrt(C[1, 1]))


def _matrix(rate: float, moving_rate: float, workers: int, curvature: float) -> np.ndarray:
    alpha = moving_rate / workers
    return np.array([[1 - rate * curvature - alpha, alpha], [moving_rate, 1 - moving_rate]])
