"""Checks of notebook 02, gradient descent."""

import numpy as np

from . import call, close, counted, must_not_be_scaled


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
