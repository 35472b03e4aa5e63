"""What is to be validated while training goes on: copies of weights, handed out in parts."""

from __future__ import annotations

from collections import deque

import numpy as np


class Validation:
    """Weights that are to be validated, in parts, by those who come for work.

    Args:
        epoch: Whose end it is.
        weights, state: Copies.
        chunks: Numbers of the parts to be done here.
        of: How many parts there are in all.
    """

    def __init__(self, epoch: int, weights: np.ndarray, state: np.ndarray, chunks, of: int):
        self.epoch, self.weights, self.state, self.of = epoch, weights, state, of
        self.todo, self.given = deque(chunks), {}
        self.sums: dict[int, np.ndarray] = {}
        self.row: dict[str, float] = {}  # what else the history is to know of this epoch

    def add(self, leaf: int, words) -> None:
        chunk = self.given.pop(leaf)
        self.sums[chunk] = np.array(words)

    def lose(self, leaf: int) -> None:
        if leaf in self.given:
            self.todo.appendleft(self.given.pop(leaf))

    @property
    def complete(self) -> bool:
        return not self.todo and not self.given

    def total(self) -> np.ndarray:
        """[samples, sums of metrics], added in one order whoever was first."""
        return sum(self.sums[chunk] for chunk in sorted(self.sums))
