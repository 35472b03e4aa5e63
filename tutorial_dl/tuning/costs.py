"""`Costs`: how much work a training is, predicted from those that have ended.

    log(seconds x ranks) = c + w . row        ridge regression; `row` is the set in the unit cube

Options such as a width or a batch size multiply the time, so its logarithm is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .space import Space

LEAST = 5  # trainings, before anything is predicted
RIDGE = 0.1


class Costs:
    """Learns from `note`, and predicts by `of`."""

    def __init__(self, space: Space):
        self.space = space
        self.rows: list[np.ndarray] = []
        self.logs: list[float] = []

    def note(self, values: Mapping[str, Any], seconds: float, ranks: int) -> None:
        """A training of this set took so long on so many ranks."""
        if np.isfinite(seconds) and seconds > 0:
            self.rows.append(self.space.encode(values))
            self.logs.append(float(np.log(seconds * ranks)))

    def of(self, sets: list[Mapping[str, Any]]) -> np.ndarray | None:
        """Logarithms of seconds on one rank, (sets,); None if too little is known."""
        if len(self.logs) < LEAST:
            return None
        x, y = np.array(self.rows), np.array(self.logs)
        middle = x.mean(0)
        centred = x - middle
        square = centred.T @ centred + RIDGE * np.eye(x.shape[1])
        weights = np.linalg.solve(square, centred.T @ (y - y.mean()))
        return y.mean() + (np.array([self.space.encode(one) for one in sets]) - middle) @ weights
