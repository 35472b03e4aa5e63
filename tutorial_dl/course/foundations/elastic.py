"""Elastic averaging (EASGD) on a parabola: equilibrium, stability and variance, in closed form.

The synchronous form of EASGD, with p workers, the center c, alpha = beta / p and curvature h, is

    x_i' = x_i - eta h (x_i - a_i) - alpha (x_i - c);   c' = c + alpha sum_i (x_i - c)

where a_i is the minimum of worker i's loss. The recurrence separates into two parts: the workers'
mean m and the center c are multiplied by a 2 x 2 matrix, and each worker's difference from the mean
by a factor:

    (m, c)' = A (m, c) + ...    A = [[1 - eta h - alpha, alpha], [beta, 1 - beta]]
    (x_i - m)' = (1 - eta h - alpha) (x_i - m) + ...

Zhang, Choromanska, LeCun, arXiv 1412.6651, equations 2 and 3; section 3 studies the same matrices.
"""

from __future__ import annotations

import numpy as np


def elastic_growth(rate: float, moving_rate: float, workers: int, curvature: float) -> float:
    """Return the factor by which each round finally multiplies the distance from equilibrium.

    Above 1 the workers diverge.

    Args:
        rate: eta, the learning rate
        moving_rate: beta
        workers: p, at least 1
        curvature: h; 0 where the loss is flat (there the factor is at least 1)

    Returns:
        The spectral radius of A.
    """
    matrix = _matrix(rate, moving_rate, workers, curvature)
    # The factor of the differences is a diagonal element of A, so it lies between A's eigenvalues
    # (A is symmetric apart from the units of m and c) and is never the largest.
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def resting_places(
    rate: float, moving_rate: float, minima: np.ndarray, curvature: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the equilibrium of workers and center.

    There a worker's gradient step, eta h (x_i - a_i), and its elastic force, alpha (x_i - c),
    cancel. The center c is the mean of the minima a_i:

        x_i = c + eta h / (eta h + alpha) (a_i - c)

    Args:
        rate: eta, the learning rate
        moving_rate: beta
        minima: a_i, shape (p, n)
        curvature: h of each coordinate, shape (n,), above 0

    Returns:
        The workers' places, shape (p, n), and the center, shape (n,).
    """
    minima, pull = np.asarray(minima, float), rate * np.asarray(curvature, float)
    center, alpha = minima.mean(axis=0), moving_rate / len(minima)
    return center + pull / (pull + alpha) * (minima - center), center


def center_deviation(
    rate: float, moving_rate: float, workers: int, curvature: float = 1.0, noise: float = 1.0
) -> float:
    """Return the standard deviation of the center about its mean in the stationary state.

    The noise adds a variance of Q = eta^2 noise^2 / p to m in each round. The covariance C of
    (m, c) then solves the linear equations C = A C A^T + Q.

    Args:
        rate: eta, the learning rate
        moving_rate: beta
        workers: p, at least 1
        curvature: h
        noise: standard deviation of one worker's gradient, independent of the other workers and
            of the other steps

    Raises:
        ValueError: the iteration diverges, so there is no stationary state
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
