"""The largest curvature of any loss, which bounds the learning rates at which descent is stable.

Along a direction of curvature lambda, a step of descent multiplies the error by 1 - eta lambda, so
descent converges only for eta < 2 / lambda_max. (Boyd and Vandenberghe, Convex Optimization,
section 9.3.)
"""

from collections.abc import Callable

import numpy as np


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
