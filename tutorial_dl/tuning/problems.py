"""Functions to search on, none of which we wrote, and `search`, one search on one of them.

Branin's and Hartmann's function of six numbers are those of Dixon and Szego (1978). Regret is the
best value found so far minus the minimum. In a copy of the repository,
`python -m benchmarks.regret` compares all samplers on many more functions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import FloatDistribution

from . import samplers
from .space import Space

MINIMA = {"branin": 0.39788735772973816, "hartmann": -3.32236801141551}


@dataclass(frozen=True)
class Problem:
    """A function to minimise: `value(values)` at a set of values of `space`; `lowest` is its
    minimum."""

    name: str
    space: Space
    value: Callable[[Mapping], float]
    lowest: float


def cube(dimension: int, low: float, high: float) -> Space:
    return Space({f"x{i}": FloatDistribution(low, high) for i in range(dimension)})


def branin() -> Problem:
    space = Space({"a": FloatDistribution(-5.0, 10.0), "b": FloatDistribution(0.0, 15.0)})

    def value(values: Mapping) -> float:
        a, b = values["a"], values["b"]
        bowl = (b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6) ** 2
        return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10

    return Problem("Branin", space, value, MINIMA["branin"])


HARTMANN = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
PEAKS = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann() -> Problem:
    space = cube(6, 0.0, 1.0)

    def value(values: Mapping) -> float:
        x = np.array([values[name] for name in space.names])
        return -float(np.array([1, 1.2, 3, 3.2]) @ np.exp(-(HARTMANN * (x - PEAKS) ** 2).sum(1)))

    return Problem("Hartmann 6", space, value, MINIMA["hartmann"])


def search(problem: Problem, sampler: Any, trials: int, seed: int) -> tuple[list, float]:
    """The best value after each trial, and seconds per suggestion.

    `sampler` is a name of samplers.py, or a sampler of Optuna's.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if isinstance(sampler, str):
        sampler = samplers.get(sampler, problem.space, seed)
    study = optuna.create_study(sampler=sampler)

    best, lowest, spent = [], np.inf, 0.0
    for _ in range(trials):
        began = time.perf_counter()
        trial = study.ask()
        values = problem.space.suggest(trial)
        spent += time.perf_counter() - began
        value = problem.value(values)
        study.tell(trial, value)
        lowest = min(lowest, value)
        best.append(lowest)
    return best, spent / trials
