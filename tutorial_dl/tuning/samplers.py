"""Samplers by name: what a search tries next. All are samplers of Optuna.

random, grid       without looking at results; grid: all combinations, in a random order
tpe                Optuna's tree of Parzen estimators
bayesian           a Gaussian process (bayesian.py)
evolutionary       a population that has children (evolutionary.py)
cmaes              CMA-ES (evolution_strategy.py)
"""

from __future__ import annotations

import math
import warnings

from optuna import samplers as optunas
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler

from .proposing import Proposing, Seen
from .space import Space, nearest

NAMES = ("random", "grid", "tpe", "bayesian", "evolutionary", "cmaes")
GRID_POINTS = 5  # values per number on a grid
LARGEST_GRID = 100_000  # sets


class Grid(Proposing):
    """Every combination of at most `points` values per number, in a random order."""

    def __init__(self, space: Space, seed: int | None = None, points: int = GRID_POINTS):
        super().__init__(space, seed)
        self.sets = space.grid(points)
        self.order = [int(i) for i in self.random.permutation(len(self.sets))]

    def propose(self, seen: Seen) -> dict:
        """The first set that no trial has had; when all have been had, the first one again."""
        taken = {tuple(row) for rows in (seen.rows, seen.pending) for row in rows}
        for i in self.order:
            if tuple(self.space.encode(self.sets[i])) not in taken:
                return self.sets[i]
        return self.sets[self.order[0]]


def check_grid(space: Space, trials: int) -> None:
    """Raise ValueError if a grid of the space has fewer sets than there are trials, or too many."""
    most = math.prod(len(one.grid(GRID_POINTS)) for one in space)
    if most > LARGEST_GRID:
        raise ValueError(
            f"a grid of this space may have {most:,} sets, more than {LARGEST_GRID:,}: use another "
            "sampler"
        )
    if trials > (number := len(space.grid(GRID_POINTS))):
        raise ValueError(f"a grid of this space has {number} sets: use --trials {number} or fewer")


def check(name: str) -> None:
    """Raise ValueError if there is no sampler of this name."""
    if name not in NAMES:
        hint = nearest(name, NAMES) or f"choose one of {', '.join(NAMES)}"
        raise ValueError(f"unknown sampler {name!r}; {hint}")


def check_suggesters(name: str, suggesters: int) -> None:
    """Raise ValueError if ranks that choose sets of values have nothing to compute."""
    if suggesters and name in ("random", "grid"):
        raise ValueError(
            f"sampler {name} does not look at results, so no rank is needed for it: leave out "
            "--suggesters"
        )


def get(name: str, space: Space, seed: int | None = None) -> BaseSampler:
    """The sampler `name` for a space; ValueError if there is none.

    A trial that is still running counts: as its mean (bayesian), as a bad one (tpe: constant liar),
    as a set that is taken (grid, evolutionary). CMA-ES draws its points independently.
    """
    check(name)
    if name == "bayesian":
        from .bayesian import Bayesian

        return Bayesian(space, seed)
    if name == "evolutionary":
        from .evolutionary import Evolutionary

        return Evolutionary(space, seed)
    if name == "cmaes":
        from .evolution_strategy import EvolutionStrategy

        return EvolutionStrategy(space, seed)
    if name == "grid":
        return Grid(space, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if name == "tpe":
            return optunas.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        return optunas.RandomSampler(seed=seed)
