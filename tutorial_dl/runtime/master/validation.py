"""`Validation`: a copy of the weights, validated in parts by workers while others train."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

NUMBERS = 12  # of a measurement that fit in a message


class Part(NamedTuple):
    """Part `part` of `parts` of the validation data."""

    part: int
    parts: int


class Evaluated(NamedTuple):
    """A piece of what was measured on a part: of the vector of `runtime.evaluation.Sums`."""

    first: int  # the piece's place in the vector
    length: int  # the vector's
    numbers: tuple[float, ...]  # at most NUMBERS

    @classmethod
    def of_words(cls, words) -> Evaluated:
        first, length = int(words[0]), int(words[1])
        return cls(first, length, tuple(words[2 : 2 + min(NUMBERS, length - first)]))

    @classmethod
    def pieces(cls, sums: np.ndarray) -> list[Evaluated]:
        """The messages that take a vector to the master, in order."""
        starts = range(0, sums.size, NUMBERS)
        return [cls(at, sums.size, tuple(sums[at : at + NUMBERS].tolist())) for at in starts]

    @property
    def last(self) -> bool:
        return self.first + len(self.numbers) == self.length


class Validation:
    """A copy of the weights, validated in parts by leaves that ask for work, while others train.

    `epoch` has ended; `parts` are the numbers of the parts to do here, of `of` in all.
    """

    def __init__(self, epoch: int, weights: np.ndarray, state: np.ndarray, parts, of: int):
        self.epoch, self.weights, self.state, self.of = epoch, weights, state, of
        self.todo, self.given = deque(parts), {}
        self.sums: dict[int, np.ndarray] = {}  # by part
        self._arriving: dict[int, list[float]] = {}  # by leaf
        self.row: dict[str, float] = {}  # other columns of this epoch's row in the history

    def add(self, leaf: int, found: Evaluated) -> None:
        """Take in a piece of what `leaf` has measured on its part."""
        numbers = self._arriving.setdefault(leaf, [])
        numbers += found.numbers
        if found.last:
            self.sums[self.given.pop(leaf)] = np.array(self._arriving.pop(leaf))

    def lose(self, leaf: int) -> None:
        self._arriving.pop(leaf, None)
        if leaf in self.given:
            self.todo.appendleft(self.given.pop(leaf))

    @property
    def complete(self) -> bool:
        return not self.todo and not self.given

    def total(self) -> np.ndarray:
        """The sum of all parts, added in a fixed order, whichever part came first."""
        return sum(self.sums[part] for part in sorted(self.sums))
