"""Checks of notebook 02, gradient descent."""

import numpy as np

from . import call, close, counted, must_be, must_not_be_scaled


def rate(answer) -> str:
    """The largest stable learning rate for the line's loss when x is ten times as large."""
    from tutorial_dl.data import curve

    x = curve(n=200, noise=0.5, seed=0, function=lambda x: 1 + 2 * x).train.inputs
    before, now = _curvatures(x), _curvatures(10 * x)
    right = 2 / now[1]
    mistakes = {
        "this is the rate of the samples before x was rescaled": 2 / before[1],
        "a rate is asked for; this is the largest curvature": now[1],
        "above 1 / λ a step overshoots, but up to which rate does it still get closer?": 1 / now[1],
        "this rate converges fastest; the largest stable one is asked for": 2 / now.sum(),
        "this is set by the smallest curvature; the steepest direction diverges first": 2 / now[0],
        "x is in the curvature as a square, x times x": 2 / before[1] / 10,
        "one curvature grows a hundredfold; was it the largest one before?": 2 / before[1] / 100,
        "is the factor of 2 in the Hessian?": 4 / now[1],
        "is the sign right? A step goes against the gradient already": -right,
    }
    must_be(answer, right, "the rate", mistakes, units=False)
    return f"above {right:.4g} every step makes the error larger"


def _curvatures(x: np.ndarray) -> np.ndarray:
    """The eigenvalues of H = 2 [[1, mean x], [mean x, mean x^2]], ascending."""
    half_trace, determinant = 1 + np.mean(x**2), 4 * np.var(x)
    root = np.sqrt(half_trace**2 - determinant)
    return np.array([half_trace - root, half_trace + root])


def descent(answer) -> str:
    """Full-batch gradient descent, compared with its closed form."""
    random = np.random.default_rng(2)
    for s, k, eta, steps in ((10, 1, 0.1, 0), (10, 1, 0.1, 1), (30, 3, 0.05, 7), (40, 4, 0.2, 50)):
        A, y, start = (random.standard_normal(shape) for shape in ((s, k), s, k))
        minimiser = np.linalg.lstsq(A, y)[0]
        H = 2 / s * A.T @ A

        def after(steps, minimiser=minimiser, H=eta * H, start=start):
            power = np.linalg.matrix_power(np.eye(len(start)) - H, steps)
            return minimiser + power @ (start - minimiser)

        right, what = after(steps), f"w after {counted(steps, 'step')} (k = {k})"
        w = call(answer, A, y, start, eta, steps)
        if steps == 1 and np.shape(w) == right.shape:
            downhill = "your step goes uphill: subtract the gradient"
            must_not_be_scaled(np.subtract(w, start), right - start, "your first step", downhill, s)
        mistakes = {"you make one step more": after(steps + 1)}
        if steps:
            mistakes |= {"you make one step less": after(steps - 1), "w has not moved": start}
        if steps > 1:
            mistakes["you stop after the first step: is `return` inside the loop?"] = after(1)
        close(w, right, what, mistakes)
    return "it follows the closed form step by step"
