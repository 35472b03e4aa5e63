"""`Validation`: weights to validate while training continues, handed out in parts."""

from __future__ import annotations

from collections import deque

import numpy as np


class Validation:
    """A copy of the weights, validated in parts by leaves that ask for work.

    Args:
        epoch: The epoch that has ended.
        weights, state: Copies of the master's.
        chunks: Numbers of the parts to do here.
        of: Total number of parts.
    """

    def __init__(self, epoch: int, weights: np.ndarray, state: np.ndarray, chunks, of: int):
        self.epoch, self.weights, self.state, self.of = epoch, weights, state, of
        self.todo, self.given = deque(chunks), {}
        self.sums: dict[int, np.ndarray] = {}
        self.row: dict[str, float] = {}  # other columns of this epoch's row in the history

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
        """[samples, sums of metrics], added in a fixed order, whichever part came first."""
        return sum(self.sums[chunk] for chunk in sorted(self.sums))
