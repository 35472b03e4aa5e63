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

from tutorial_dl.foundations.loss import LeastSquares


def stability_bound(hessian: np.ndarray) -> float:
    """2 / lambda_max: full-batch descent with a constant rate shrinks the error only below this.

    Args:
        hessian: shape (k, k), symmetric.

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
    """How far above its minimum L settles, on average over steps, when batches are random.

    A batch's gradient is the full one plus noise. Along an eigenvector with curvature lambda, let
    the noise of one sample have variance c at the minimum. The error there then settles where
    shrinking and noise balance,

        v = (1 - eta lambda)^2 v + eta^2 c/b (s - b)/(s - 1)

    and L - L* = sum lambda v / 2. With b << s that is about eta tr(C) / (4 b): halve the rate or
    double the batch to halve the floor. (s - b)/(s - 1) is for a batch drawn without replacement:
    the batch of all samples has no noise. Batches of one epoch are taken as independent, which
    holds if the descent forgets within an epoch: steps per epoch x eta lambda well above 1;
    otherwise the floor is lower than this, as no sample comes twice in an epoch.

    Returns:
        L - L*, in the unit of the loss; infinite at or above the stability bound.
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

    noise = variances / b * (s - b) / (s - 1)  # (k,)
    return float(np.sum(learning_rate * noise / (2 * (2 - learning_rate * curvatures))))


def _curvatures(hessian: np.ndarray) -> np.ndarray:
    """Eigenvalues, smallest first: shape (k,)."""
    curvatures = np.linalg.eigvalsh(hessian)
    if not curvatures[-1] > 0:
        raise ValueError(f"the loss does not curve upwards: largest curvature {curvatures[-1]:.3g}")
    return curvatures
