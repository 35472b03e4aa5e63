"""What descent on a bowl will do, known before the first step.

L(w) = L* + (w - w*)^T H (w - w*) / 2, so a step of full-batch descent maps the error w - w* to
(1 - eta H) (w - w*). Along the eigenvector of H with eigenvalue (curvature) lambda it is multiplied
by 1 - eta lambda. All of them shrink if and only if

    eta < 2 / lambda_max

and the slowest sets the speed: max |1 - eta lambda|. That is least at eta = 2 / (lambda_min +
lambda_max), where it is (kappa - 1) / (kappa + 1), kappa = lambda_max / lambda_min.

Source: Boyd and Vandenberghe, Convex Optimization, section 9.3; for the noise floor, Bottou,
Curtis and Nocedal, Optimization Methods for Large-Scale Machine Learning, section 4.2.
"""

from __future__ import annotations

import numpy as np

from tutorial_dl.course.foundations.loss import LeastSquares


def stability_bound(hessian: np.ndarray) -> float:
    """2 / lambda_max: full-batch descent with a constant rate shrinks the error only below this.

    Parameters
    ----------
    hessian : shape (k, k), symmetric.

    >>> stability_bound(np.diag([1.0, 4.0]))
    0.5
    """
    return float(2 / _curvatures(hessian)[-1])


def best_rate(hessian: np.ndarray) -> float:
    """2 / (lambda_min + lambda_max): the constant rate whose slowest direction is fastest."""
    curvatures = _curvatures(hessian)
    return float(2 / (curvatures[0] + curvatures[-1]))


def contraction(hessian: np.ndarray, learning_rate: float) -> float:
    """max |1 - eta lambda|: the error's factor a step in the end; above 1 it grows."""
    return float(np.abs(1 - learning_rate * _curvatures(hessian)).max())


def predicted_path(
    loss: LeastSquares, start: np.ndarray, learning_rate: float, steps: int
) -> np.ndarray:
    """The path of full-batch descent in closed form, shape (steps + 1, k): no step is taken.

    w_t = w* + V (1 - eta lambda)^t V^T (w_0 - w*),   H = V diag(lambda) V^T
    """
    minimiser = loss.minimiser()
    curvatures, V = np.linalg.eigh(loss.hessian())  # (k,), (k, k)
    factors = (1 - learning_rate * curvatures) ** np.arange(steps + 1)[:, None]  # (steps + 1, k)
    return minimiser + factors * (V.T @ (start - minimiser)) @ V.T


def noise_floor(loss: LeastSquares, learning_rate: float, batch_size: int) -> float:
    """How far above its minimum L stays with random batches, on average over steps, in the end.

    A batch's gradient is the full one plus noise. Along an eigenvector with curvature lambda, let
    one sample's gradient at the minimum have variance c over the samples. One epoch deals the s
    samples out into batches of b_0, b_1, ... of them, so the batches' noises n_i have

        var n_i = c (s - b_i) / (b_i (s - 1)),   cov(n_i, n_j) = -c / (s - 1)

    (dealt without replacement, they cancel over the epoch). The error goes e <- r e - eta n_i,
    with r = 1 - eta lambda, and after j steps of an epoch its variance is

        v_j = r^2j v_0 + eta^2 c / (s - 1) (P_j - S_j^2)
        P_j = sum_i<j r^(2(j-1-i)) s / b_i,   S_j = sum_i<j r^(j-1-i)

    v_0 being what an epoch leaves unchanged. L - L* = sum over eigenvectors of lambda v / 2. If a
    descent forgets well within an epoch and b is far below s, this is about eta tr(C) / (4 b):
    halve the rate or double the batch to halve the floor. All samples in one batch have no noise.

    Each batch's curvature is taken as the full one: good for eta well below the stability bound.

    Parameters
    ----------
    loss : s samples, k parameters.
    learning_rate : eta, constant.
    batch_size : b, 1 to s; the last batch of an epoch may be smaller, as in `descend`.

    Returns
    -------
    Mean of L - L*, in the unit of the loss; infinite at or above the stability bound.
    """
    s, b = loss.samples, batch_size
    if not 1 <= b <= s:
        raise ValueError(f"batch_size must be 1 to {s}, got {b}")
    curvatures, V = np.linalg.eigh(loss.hessian())  # (k,), (k, k)
    if learning_rate >= 2 / curvatures[-1]:
        return float("inf")
    if b == s:
        return 0.0

    residuals = loss.design @ loss.minimiser() - loss.targets  # (s,)
    gradients = 2 * residuals[:, None] * loss.design @ V  # (s, k): one a sample, in V's axes
    variances = (gradients**2).mean(axis=0)  # (k,): their mean is zero at the minimum

    r = 1 - learning_rate * curvatures  # (k,)
    P, S, decay = np.zeros_like(r), np.zeros_like(r), np.ones_like(r)
    bracket_sum, decay_sum = np.zeros_like(r), np.zeros_like(r)
    steps = -(-s // b)
    for step in range(steps):
        P = r**2 * P + s / min(b, s - step * b)
        S = r * S + 1
        decay = r**2 * decay  # r^2j
        bracket_sum += P - S**2
        decay_sum += decay

    scale = learning_rate**2 * variances / (s - 1)  # (k,)
    v_0 = scale * (P - S**2) / (1 - decay)
    v = (decay_sum * v_0 + scale * bracket_sum) / steps  # (k,): mean over the steps of an epoch
    return float(np.sum(curvatures * v / 2))


def _curvatures(hessian: np.ndarray) -> np.ndarray:
    """Eigenvalues, smallest first: shape (k,)."""
    curvatures = np.linalg.eigvalsh(hessian)
    if not curvatures[-1] > 0:
        raise ValueError(f"the loss does not curve upwards: largest curvature {curvatures[-1]:.3g}")
    return curvatures
