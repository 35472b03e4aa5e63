"""Checks of notebook 02, gradient descent."""

import numpy as np

from . import call, close, must_not_be_scaled


def rate(answer) -> str:
    """The largest stable learning rate for the line's loss when x is ten times as large."""
    from tutorial_dl.data import curve

    x = 10 * curve(n=200, noise=0.5, seed=0, function=lambda x: 1 + 2 * x).train.inputs
    # H = 2 [[1, mean x], [mean x, mean x^2]]: the eigenvalues of a 2 x 2 matrix have a formula.
    half_trace, determinant = 1 + np.mean(x**2), 4 * np.var(x)
    largest = half_trace + np.sqrt(half_trace**2 - determinant)
    close(answer, 2 / largest, "the rate", rtol=0.01)
    return f"above {2 / largest:.4g} every step makes the error larger"


def descent(answer) -> str:
    """Full-batch gradient descent, compared with its closed form."""
    random = np.random.default_rng(2)
    for s, k, eta, steps in ((10, 1, 0.1, 0), (10, 1, 0.1, 1), (30, 3, 0.05, 7), (40, 4, 0.2, 50)):
        A, y, start = (random.standard_normal(shape) for shape in ((s, k), s, k))
        minimiser = np.linalg.lstsq(A, y)[0]
        H = 2 / s * A.T @ A
        power = np.linalg.matrix_power(np.eye(k) - eta * H, steps)
        right = minimiser + power @ (start - minimiser)
        w = call(answer, A, y, start, eta, steps)
        if steps == 1 and np.shape(w) == right.shape:
            downhill = "your step goes uphill: subtract the gradient"
            must_not_be_scaled(w - start, right - start, "your first step", downhill)
        close(w, right, f"w after {steps} steps (k = {k})", rtol=1e-8, atol=1e-10)
    return "it follows the closed form step by step"
