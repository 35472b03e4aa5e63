"""`EvolutionStrategy`: CMA-ES of the package cmaes, on the unit cube, without waiting.

Sets are drawn from a normal distribution. As soon as a population of trials has finished, whichever
they are, its mean and covariance follow the better half (Hansen, arXiv 1604.00772). So a trial that
is late counts in a later population, and nobody waits for it. A resumed study is fed again, in the
order of its trials. When the distribution has become too narrow, another one begins anywhere, with
twice as many trials in each population.

A category is the largest of its columns. (Optuna's own sampler leaves categories to chance, and
can't be used where parameters have conditions.)
"""

from __future__ import annotations

import numpy as np
from cmaes import CMA

from .proposing import Proposing, Seen

WIDTH = 0.25  # of the first distribution, in parts of each range


class EvolutionStrategy(Proposing):
    """CMA-ES with restarts."""

    def __init__(self, space, seed: int | None = None, common: int | None = None):
        super().__init__(space, seed, common)
        self.columns = max(2, space.columns)  # CMA-ES needs two dimensions
        self.told: set[int] = set()
        self.drawn: dict[tuple, np.ndarray] = {}  # a set's row -> the point it was drawn at
        self.strategy = self._begin(np.full(self.columns, 0.5), None)

    def _begin(self, mean: np.ndarray, population: int | None) -> CMA:
        return CMA(
            mean, WIDTH, np.tile([0.0, 1.0], (self.columns, 1)),
            seed=int(self.random.integers(2**31)), population_size=population,
        )  # fmt: skip

    def propose(self, seen: Seen) -> dict:
        new = [i for i, number in enumerate(seen.numbers) if number not in self.told]
        size = self.strategy.population_size
        while len(new) >= size:
            part, new = new[:size], new[size:]
            self.strategy.tell([(self._point(seen.rows[i]), seen.values[i]) for i in part])
            self.told |= {seen.numbers[i] for i in part}
            if self.strategy.should_stop():
                size = 2 * self.strategy.population_size
                self.strategy = self._begin(self.random.random(self.columns), size)
        point = self.strategy.ask()
        row = self.space.snapped(point[None, : self.space.columns])[0]
        self.drawn[tuple(row)] = point
        return self.space.decode(row)

    def _point(self, row: np.ndarray) -> np.ndarray:
        """Where a set was drawn; its own row if an earlier process has drawn it."""
        if (found := self.drawn.get(tuple(row))) is not None:
            return found
        return np.concatenate([row, np.full(self.columns - len(row), 0.5)])
