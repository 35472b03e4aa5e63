"""The largest curvature of a loss, from its gradient alone: how far a step may go.

The second derivatives H of a loss of n parameters are n^2 numbers, too many to write down. But H
times a vector v is the change of the gradient along v,

    H v = (gradient(w + h v) - gradient(w - h v)) / 2h        h small

and Lanczos' method finds the largest eigenvalue from a few of these products: in the basis of
v, Hv, H^2 v, ..., made orthonormal, H is a small matrix T, whose largest eigenvalue is soon that
of H. (Golub and Van Loan, Matrix Computations, 4th edition, section 10.1.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def largest_curvature(
    gradient: Callable[[np.ndarray], np.ndarray],
    parameters: np.ndarray,
    products: int = 16,
    step: float = 1e-4,
    seed: int = 0,
) -> float:
    """The largest eigenvalue of the second derivatives at `parameters`.

    Parameters
    ----------
    gradient : of the loss, at a w of shape (n,) and float64; shape (n,), float64.
    parameters : where, shape (n,).
    products : with H, of two gradients each; n of them are exact, 12 give a network's to about
        10%.
    step : |h v|, in the unit of the parameters: short, as H changes along it, but not lost in the
        rounding of the gradient (in float32, 0.01 is about right). relu makes a loss with many
        small kinks; a step that crosses only a few of them sees each as a huge curvature. Take
        one that crosses many, and look whether half of it gives the same.
    seed : of the first v.

    Returns
    -------
    Unit of the loss, over that of a parameter squared. Never above the right value (but for
    rounding), as T sees only a part of H.

    Raises
    ------
    ValueError : no products, or no step.

    >>> round(largest_curvature(lambda w: np.array([3.0, -5.0]) * w, np.ones(2)), 6)
    3.0
    """
    if products < 1:
        raise ValueError(f"{products} products with H; 1 or more are needed")
    if not step > 0:
        raise ValueError(f"a step of {step}; a length above 0 is needed")
    w = np.array(parameters, float)
    v = np.random.default_rng(seed).standard_normal(w.size)
    basis, small = [], []
    while len(basis) < min(products, w.size):
        length = np.linalg.norm(v)
        if basis and length <= 1e-8 * max(abs(column).max() for column in small):
            break  # H has nothing new to show
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
