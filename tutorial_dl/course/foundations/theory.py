"""Predictions for gradient descent on a quadratic loss: stability, speed, path and noise floor.

L(w) = L* + (w - w*)^T H (w - w*) / 2, so a step of full-batch descent maps the error w - w* to
(1 - eta H) (w - w*). Its component along the eigenvector of H with eigenvalue (curvature) lambda is
multiplied by 1 - eta lambda. All components shrink if and only if

    eta < 2 / lambda_max

and the slowest sets the speed, max |1 - eta lambda|. This factor is smallest at
eta = 2 / (lambda_min + lambda_max), where it is (kappa - 1) / (kappa + 1) with
kappa = lambda_max / lambda_min.

Source: Boyd and Vandenberghe, Convex Optimization, section 9.3; for the noise floor, Bottou,
Curtis and Nocedal, Optimization Methods for Large-Scale Machine Learning, section 4.2.
"""

from collections.abc import Callable

import numpy as np

from tutorial_dl.course.foundations.least_squares import LeastSquares


def stability_bound(hessian: np.ndarray) -> float:
    """Return 2 / lambda_max: full-batch descent converges only for constant rates below this.

    Args:
        hessian: shape (k, k), symmetric

    Raises:
        ValueError: no eigenvalue is above 0

    Example:
        >>> stability_bound(np.diag([1.0, 4.0]))
        0.5
    """
    return float(2 / _curvatures(hessian)[-1])


def best_rate(hessian: np.ndarray) -> float:
    """Return 2 / (lambda_min + lambda_max), the constant rate with the fastest convergence.

    Example:
        >>> best_rate(np.diag([1.0, 4.0]))
        0.4
    """
    curvatures = _curvatures(hessian)
    return float(2 / (curvatures[0] + curvatures[-1]))


def contraction(hessian: np.ndarray, learning_rate: float) -> float:
    """Return max |1 - eta lambda|, by which each step finally multiplies the error.

    Above 1 the error grows.

    Args:
        hessian: shape (k, k), symmetric
        learning_rate: eta

    Example:
        >>> round(contraction(np.diag([1.0, 4.0]), 0.4), 6)
        0.6
    """
    return float(np.abs(1 - learning_rate * _curvatures(hessian)).max())


def predicted_path(
    loss: LeastSquares, start: np.ndarray, learning_rate: float, steps: int
) -> np.ndarray:
    """Return the path of full-batch descent in closed form, without taking a step.

        w_t = w* + V (1 - eta lambda)^t V^T (w_0 - w*),   H = V diag(lambda) V^T

    Args:
        loss: s samples, k parameters
        start: w_0, shape (k,)
        learning_rate: eta, constant
        steps: number of steps

    Returns:
        w_0, w_1, ..., shape (steps + 1, k).
    """
    minimiser = loss.minimiser()
    curvatures, V = np.linalg.eigh(loss.hessian())  # (k,), (k, k)
    factors = (1 - learning_rate * curvatures) ** np.arange(steps + 1)[:, None]  # (steps + 1, k)
    return minimiser + factors * (V.T @ (start - minimiser)) @ V.T


def noise_floor(loss: LeastSquares, learning_rate: float, batch_size: int) -> float:
    """Return how far above its minimum L finally stays with random batches, on average over steps.

    A batch's gradient is the full gradient plus noise. Along an eigenvector with curvature lambda,
    let one sample's gradient at the minimum have variance c over the samples. One epoch divides the
    s samples into batches of b_0, b_1, ... samples, so the noises n_i of the batches have

        var n_i = c (s - b_i) / (b_i (s - 1)),   cov(n_i, n_j) = -c / (s - 1)

    (drawn without replacement, they cancel over the epoch). The error follows e <- r e - eta n_i
    with r = 1 - eta lambda, and after j steps of an epoch its variance is

        v_j = r^2j v_0 + eta^2 c / (s - 1) (P_j - S_j^2)
        P_j = sum_i<j r^(2(j-1-i)) s / b_i,   S_j = sum_i<j r^(j-1-i)

    where v_0 is the variance that an epoch leaves unchanged. L - L* is the sum over eigenvectors of
    lambda v / 2. If errors decay well within an epoch and b is far below s, this is about
    eta tr(C) / (4 b): halve the rate or double the batch to halve the floor. A batch of all samples
    has no noise.

    Approximation: every batch has the curvature of the full loss, which is good for eta well below
    the stability bound.

    Args:
        loss: s samples, k parameters
        learning_rate: eta, constant
        batch_size: b, 1 to s; the last batch of an epoch may be smaller, as in `descend`

    Returns:
        The mean of L - L*, in the unit of the loss; infinite at or above the stability bound.
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
    gradients = 2 * residuals[:, None] * loss.design @ V  # (s, k): one per sample, in V's axes
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


def largest_curvature(
    gradient: Callable[[np.ndarray], np.ndarray],
    parameters: np.ndarray,
    products: int = 16,
    step: float = 1e-4,
    seed: int = 0,
) -> float:
    """Return the largest eigenvalue of any loss's Hessian at `parameters`, by Lanczos' method.

    The Hessian H of a loss of n parameters has n^2 elements, too many to store. But H times a
    vector v is the change of the gradient along v,

        H v = (gradient(w + h v) - gradient(w - h v)) / 2h        h small

    and Lanczos' method finds the largest eigenvalue from a few of these products: in an orthonormal
    basis of v, Hv, H^2 v, ..., H is a small matrix T, whose largest eigenvalue soon approaches that
    of H. (Golub and Van Loan, Matrix Computations, 4th edition, section 10.1.)

    Args:
        gradient: a function from w, shape (n,), float64, to the loss's gradient there, of the same
            shape and dtype
        parameters: where to measure, shape (n,)
        products: number of products with H, at least 1, of two gradients each; n of them are exact,
            12 give a network's largest curvature to about 10%
        step: |h v|, in the unit of the parameters, above 0. It must be short, because H changes
            along it, but not so short that rounding of the gradient hides the change (in float32,
            0.01 is about right). relu makes a loss with many small kinks, and a step that crosses
            only a few of them sees each as a huge curvature: take a step that crosses many, and
            check that half of it gives the same result.
        seed: of the random first v

    Returns:
        The curvature, in the unit of the loss per parameter squared. Apart from rounding, it is
        never above the right value, because T is only a part of H.

    Example:
        >>> round(largest_curvature(lambda w: np.array([3.0, -5.0]) * w, np.ones(2)), 6)
        3.0
    """
    if products < 1:
        raise ValueError(f"products must be at least 1, got {products}")
    if not step > 0:
        raise ValueError(f"step must be above 0, got {step}")
    w = np.array(parameters, float)
    v = np.random.default_rng(seed).standard_normal(w.size)
    basis, small = [], []
    while len(basis) < min(products, w.size):
        length = np.linalg.norm(v)
        if basis and length <= 1e-8 * max(abs(column).max() for column in small):
            break  # H v lies in the span of the basis: T is complete
        basis.append(v / length)
        h = step * basis[-1]
        v = (gradient(w + h) - gradient(w - h)) / (2 * step)  # H v, (n,)
        found = np.array(basis)  # (k, n)
        small.append(found @ v)  # a column of T, above and on its diagonal
        v = v - found.T @ small[-1]
    T = np.zeros((len(basis), len(basis)))
    for k, column in enumerate(small):
        T[: k + 1, k] = T[k, : k + 1] = column
    return float(np.linalg.eigvalsh(T)[-1])


def _curvatures(hessian: np.ndarray) -> np.ndarray:
    """Eigenvalues, smallest first: shape (k,)."""
    curvatures = np.linalg.eigvalsh(hessian)
    if not curvatures[-1] > 0:
        raise ValueError(f"the loss does not curve upwards: largest curvature {curvatures[-1]:.3g}")
    return curvatures
