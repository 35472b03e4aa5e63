"""`curve`: noisy samples of a known function, so that the right answer is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tutorial_dl.data.dataset import Data, Dataset


def cubic(x: np.ndarray) -> np.ndarray:
    """f(x) = 1/2 - x - x^2 + 2 x^3; a cubic model can fit it, with these as best coefficients."""
    return 0.5 + x * (-1 + x * (-1 + 2 * x))


def curve(
    n: int = 200,
    noise: float = 0.1,
    seed: int = 0,
    function: Callable[[np.ndarray], np.ndarray] = cubic,
) -> Dataset:
    """Make `n` samples y = function(x) + noise for training, and `n` others for validation.

    Args:
        n: Samples per part.
        noise: Standard deviation of the normal noise on y; the smallest mean squared error that any
            model can reach is noise^2.
        seed: Seed of x, uniform in [-1, 1], and of the noise.
        function: The function to learn, from arrays (n,) to arrays (n,).

    Returns:
        Dataset of inputs x (n,) and targets y (n,), float64, no classes.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if not noise >= 0:
        raise ValueError(f"noise must be at least 0, got {noise}")
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(2):
        x = random.uniform(-1, 1, n)
        parts.append(Data.of(x, function(x) + noise * random.standard_normal(n)))
    return Dataset("curve", *parts)
