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
from importlib import import_module

import numpy as np
from optuna import samplers as optunas
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler

from .proposing import Proposing, Seen
from .space import Space, check_name, grid_of

NAMES = ("random", "grid", "tpe", "bayesian", "evolutionary", "cmaes")
OURS = {  # in modules of their own, which are slow to import
    "bayesian": ("bayesian", "Bayesian"),
    "evolutionary": ("evolutionary", "Evolutionary"),
    "cmaes": ("evolution_strategy", "EvolutionStrategy"),
}
GRID_POINTS = 5  # values per number on a grid
FURTHER = 7919  # between the seeds of leaders; studies that go on count by thousands
LARGEST_GRID = 100_000  # sets


class Grid(Proposing):
    """Every combination of at most `GRID_POINTS` values per number, in a random order."""

    def __init__(self, space: Space, seed: int | None = None, common: int | None = None):
        super().__init__(space, seed, common)
        self.sets = space.grid(GRID_POINTS)
        self.order = self.common.permutation(len(self.sets))

    def propose(self, seen: Seen) -> dict:
        """Counts to `place` among the sets that were not tried before, and returns that set."""
        tried = {tuple(row) for row in seen.tried}
        left = [i for i in self.order if tuple(self.space.encode(self.sets[i])) not in tried]
        return self.sets[(left or self.order)[seen.place % len(left or self.order)]]


def check_grid(space: Space, trials: int, failed: int = 0) -> int:
    """How many sets a grid of the space has.

    Raises ValueError if they are too many, or fewer than there are trials; trials that failed may
    be made again.
    """
    most = math.prod(len(grid_of(one, GRID_POINTS)) for _, one in space)
    if most > LARGEST_GRID:
        raise ValueError(
            f"a grid of this space may have {most:,} sets, more than {LARGEST_GRID:,}: use another "
            "sampler"
        )
    if trials > (number := len(space.grid(GRID_POINTS))) + failed:
        raise ValueError(f"a grid of this space has {number} sets: use --trials {number} or fewer")
    return number


def check(name: str) -> None:
    """Raise ValueError if there is no sampler of this name."""
    check_name("sampler", name, NAMES)


def of_stream(
    name: str, space: Space, seed: int | None, leader: int = 0, begun: int = 0
) -> BaseSampler:
    """The sampler of one of a search's leaders, after this number of trials."""
    own = None if seed is None else seed + FURTHER * leader + 1000 * begun
    return get(name, space, own, seed)


def random_set(seed: int, place: int) -> BaseSampler:
    """Draws set number `place` of a random search: the same one, whichever leader draws it."""
    return optunas.RandomSampler(
        seed=int(np.random.SeedSequence((seed, place)).generate_state(1)[0])
    )


def get(name: str, space: Space, seed: int | None = None, common: int | None = None) -> BaseSampler:
    """The sampler `name` for a space; ValueError if there is none. `common`: see `Proposing`.

    A trial that is still running counts: as its mean (bayesian), as a bad one (tpe: constant liar),
    as a set that is taken (grid, evolutionary). CMA-ES draws its points independently.
    """
    check(name)
    if name == "grid":
        return Grid(space, seed, common)
    if name in OURS:
        module, kind = OURS[name]
        return getattr(import_module(f"{__package__}.{module}"), kind)(space, seed, common)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if name == "tpe":
            return optunas.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        return optunas.RandomSampler(seed=seed)
