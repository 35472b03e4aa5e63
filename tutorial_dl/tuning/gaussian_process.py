"""A Gaussian process: what is known of a function of which some values were measured.

    mean      k* (K + s^2 I)^-1 y
    variance  k** - k* (K + s^2 I)^-1 k*^T

K is the matrix of the kernel between measured points, k* the kernel between a new point and these.
The kernel is Matérn's of smoothness 5/2, with a length for each parameter of the space:

    k(r) = (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r),   r^2 = sum_p d_p^2 / length_p^2

The distance d_p of two numbers is their difference, that of two categories is 0 or 1 (Hamming's).
A category of k choices has k columns in a row, of which one is 1. All of them have one length, and
each pair of choices is equally far apart.

In the functions below, `hyper` are the logarithms of the lengths, then of the amplitude and of the
noise (variances), (p + 2,).

Lengths, amplitude and noise are those that make the measured values most likely, times a prior
(lengths that grow with sqrt(columns): Hvarfner, Hellsten, Nardi, arXiv 2402.02229). Rasmussen and
Williams, Gaussian Processes for Machine Learning, equations 2.25, 2.26 and 5.9.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import erfcx, log_ndtr

ROOT5 = np.sqrt(5.0)
SPREAD = 1.0  # of the priors of the logarithms of length and amplitude
NOISE = np.log(1e-3), 2.0  # mean and spread of the prior of the logarithm of s^2
LOWEST_NOISE = 1e-7
STEPS = 60  # of L-BFGS, at most


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Between rows of `a` (n, c) and `b` (m, c): (n, m)."""
    found = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
    return np.maximum(found, 0, out=found)


def matern(squared: np.ndarray) -> np.ndarray:
    """Matérn's kernel of smoothness 5/2 at squared distances, in units of the lengths."""
    root = np.sqrt(5 * squared)
    return (1 + root + root * root / 3) * np.exp(-root)


def sizes_of(x: np.ndarray, sizes: Sequence[int] | None) -> np.ndarray:
    """Columns of each parameter, (p,): 1 for a number, k for k choices; None: all are numbers."""
    return np.ones(x.shape[1], int) if sizes is None else np.array(sizes)


def scale_of(hyper: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """What columns are multiplied by, (c,). Two columns change with a category: hence sqrt(1/2)."""
    return np.repeat(np.where(sizes > 1, np.sqrt(0.5), 1.0) * np.exp(-hyper[:-2]), sizes)


def default(parameters: int) -> np.ndarray:
    """Where a fit begins, (p + 2,)."""
    return np.array([*[center(parameters)] * parameters, 0.0, NOISE[0]])


def center(parameters: int) -> float:
    """The middle of the prior of the logarithm of a length in the unit cube."""
    return np.log(0.5) + 0.5 * np.log(parameters)


def loss_and_gradient(
    hyper: np.ndarray, x: np.ndarray, y: np.ndarray, sizes: Sequence[int] | None = None
) -> tuple:
    """Minus the logarithm of likelihood times prior, and its gradient by `hyper`."""
    sizes = sizes_of(x, sizes)
    n, count = len(x), len(sizes)
    scaled = x * scale_of(hyper, sizes)
    squared = squared_distances(scaled, scaled)
    amplitude, noise = np.exp(hyper[count]), np.exp(hyper[count + 1]) + LOWEST_NOISE
    root = np.sqrt(5 * squared)
    decay = amplitude * np.exp(-root)
    kernel = (1 + root + root * root / 3) * decay
    try:
        lower = cholesky(kernel + noise * np.eye(n), lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return 1e25, np.zeros_like(hyper)
    inverse = cho_solve((lower, True), np.eye(n), check_finite=False)
    weights = inverse @ y
    loss = 0.5 * y @ weights + np.log(np.diag(lower)).sum()
    # d loss / d K, elementwise
    slope = 0.5 * (inverse - np.outer(weights, weights))
    gradient = np.empty_like(hyper)
    # dk / d log length_p = amplitude 5/3 (1 + root) exp(-root) (d_p / length_p)^2
    by_square = slope * (5 / 3) * (1 + root) * decay
    total = by_square.sum(1)
    by_column = 2 * (
        total @ (scaled * scaled)
        - np.einsum("ic,ij,jc->c", scaled, by_square, scaled, optimize=True)
    )
    gradient[:count] = np.bincount(np.repeat(np.arange(count), sizes), by_column)
    gradient[count] = (slope * kernel).sum()
    gradient[count + 1] = np.trace(slope) * np.exp(hyper[count + 1])
    off = hyper - default(count)
    spread = np.array([*[SPREAD] * count, SPREAD, NOISE[1]])
    return loss + 0.5 * ((off / spread) ** 2).sum(), gradient + off / spread**2


def fit(
    x: np.ndarray, y: np.ndarray, start: np.ndarray | None = None,
    sizes: Sequence[int] | None = None,
) -> np.ndarray:  # fmt: skip
    """The `hyper` that makes `y` (n,) at `x` (n, columns) most likely, from `start` on."""
    sizes = sizes_of(x, sizes)
    first = default(len(sizes))
    starts = [first] if start is None else [start, first]
    bounds = [(np.log(1e-2), np.log(1e3))] * len(sizes) + [(-5.0, 5.0), (np.log(1e-7), 0.0)]
    # Two starts cost twice as much, and matter while there are few points
    found = [
        minimize(
            loss_and_gradient, one, (x, y, sizes), "L-BFGS-B", jac=True, bounds=bounds,
            options={"maxiter": STEPS},
        )
        for one in (starts if len(x) < 40 else starts[:1])
    ]  # fmt: skip
    return min(found, key=lambda one: one.fun).x


class Process:
    """The process given values `y` (n,) measured at `x` (n, columns)."""

    def __init__(
        self, x: np.ndarray, y: np.ndarray, hyper: np.ndarray, sizes: Sequence[int] | None = None
    ):
        self.points, self.y, self.hyper, self.sizes = x, y, hyper, sizes_of(x, sizes)
        self.scale = scale_of(hyper, self.sizes)
        self.amplitude, self.noise = np.exp(hyper[-2:])
        self.x = x * self.scale
        kernel = self.amplitude * matern(squared_distances(self.x, self.x))
        kernel[np.diag_indices(len(x))] += self.noise + LOWEST_NOISE
        self.lower = cholesky(kernel, lower=True, check_finite=False)
        self.weights = cho_solve((self.lower, True), y, check_finite=False)

    def at(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance, without noise, at each of `points` (m, columns)."""
        return self.at_with_half(points)[:2]

    def at_with_half(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, variance, and (K + s^2 I)^-1/2 k*^T, (n, m), at each of `points` (m, columns)."""
        across = self.amplitude * matern(squared_distances(points * self.scale, self.x))  # (m, n)
        half = solve_triangular(self.lower, across.T, lower=True, check_finite=False)
        variance = np.maximum(self.amplitude - (half * half).sum(0), 1e-12)
        return across @ self.weights, variance, half

    def covariance(self, points: np.ndarray, half: np.ndarray, one: int) -> np.ndarray:
        """Between the values at `points` (m, columns) and at point number `one` of them, (m,)."""
        scaled = points * self.scale
        prior = self.amplitude * matern(squared_distances(scaled, scaled[one : one + 1])[:, 0])
        return prior - half.T @ half[:, one]

    def at_with_slopes(self, point: np.ndarray) -> tuple:
        """Mean, variance and their gradients (columns,) at one point."""
        difference = point * self.scale - self.x  # (n, columns)
        root = np.sqrt(5 * (difference * difference).sum(1))
        decay = self.amplitude * np.exp(-root)
        across = (1 + root + root * root / 3) * decay
        slopes = -(5 / 3) * ((1 + root) * decay)[:, None] * difference * self.scale
        solved = cho_solve((self.lower, True), across, check_finite=False)
        variance = max(self.amplitude - across @ solved, 1e-12)
        return across @ self.weights, variance, self.weights @ slopes, -2 * solved @ slopes

    def believing(self, points: np.ndarray) -> Process:
        """The process if `points` came out at the mean: the kriging believer for pending trials."""
        mean, _ = self.at(points)
        both = np.concatenate([self.points, points]), np.concatenate([self.y, mean])
        return Process(*both, self.hyper, self.sizes)


def log_expected_improvement(mean, variance, best: float) -> np.ndarray:
    """The logarithm of (b - m) Phi(z) + sd phi(z), z = (b - m) / sd; see `log_improvement`."""
    deviation = np.sqrt(variance)
    return log_improvement((best - mean) / deviation) + np.log(deviation)


def log_improvement(z: np.ndarray) -> np.ndarray:
    """log(z Phi(z) + phi(z)), also far below 0, where the sum underflows (arXiv 2310.20708)."""
    z = np.asarray(z, float)
    log_phi = -0.5 * z * z - 0.5 * np.log(2 * np.pi)
    with np.errstate(all="ignore"):
        direct = np.log(z * np.exp(log_ndtr(z)) + np.exp(log_phi))
        # Phi(z) / phi(z) = sqrt(pi/2) erfcx(-z / sqrt(2)); the difference from 1 / |z| is z^-3
        ratio = 1 + z * np.sqrt(np.pi / 2) * erfcx(-z / np.sqrt(2))
        far = log_phi + np.where(
            z < -1e3, -2 * np.log(np.abs(z)), np.log(np.maximum(ratio, 1e-300))
        )
    return np.where(z > -1, direct, far)
