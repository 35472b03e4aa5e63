"""Noisy samples of a known function: data for which the right answer is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tutorial_dl.data.dataset import Data, Dataset


def cubic(x: np.ndarray) -> np.ndarray:
    """f(x) = 1/2 - x - x^2 + 2 x^3: within reach of a cubic, whose best coefficients it shows."""
    return 0.5 + x * (-1 + x * (-1 + 2 * x))


def curve(
    n: int = 200,
    noise: float = 0.1,
    seed: int = 0,
    function: Callable[[np.ndarray], np.ndarray] = cubic,
) -> Dataset:
    """`n` samples y = function(x) + noise to learn from, and as many others to judge by.

    Args:
        n: Samples of each part.
        noise: Standard deviation of the normal noise on y; the smallest mean squared error that any
            model can hope for is noise^2.
        seed: Of x, uniform in [-1, 1], and of the noise.
        function: What to learn, of arrays (n,) -> (n,).

    Returns:
        Dataset of inputs x (n,) and targets y (n,), float64, no classes.
    """
    if n < 1:
        raise ValueError(f"n {n}: expected at least 1 sample")
    if not noise >= 0:
        raise ValueError(f"noise {noise}: expected a standard deviation, 0 or more")
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(2):
        x = random.uniform(-1, 1, n)
        parts.append(Data.of(x, function(x) + noise * random.standard_normal(n)))
    return Dataset("curve", *parts)
