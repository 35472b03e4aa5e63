"""`search`: one search on a problem with a known minimum. Regret is the best value minus that.

benchmarks/regret.py compares all samplers on many problems.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import samplers
from .problems import Problem


def search(problem: Problem, sampler: Any, trials: int, seed: int) -> tuple[list, float]:
    """The best value after each trial, and seconds per suggestion.

    `sampler` is a name of samplers.py, or a sampler of Optuna's.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if isinstance(sampler, str):
        sampler = samplers.get(sampler, problem.space, seed)
    study = optuna.create_study(sampler=sampler)

    def ask():
        trial = study.ask()
        return problem.space.suggest(trial), trial

    return by_asking(problem, ask, study.tell, trials)


def by_asking(
    problem: Problem, ask: Callable[[], tuple], tell: Callable, trials: int
) -> tuple[list, float]:
    """As `search`: `ask()` returns (values, token), and `tell(token, value)` hears of the value."""
    best, lowest, spent = [], np.inf, 0.0
    for _ in range(trials):
        began = time.perf_counter()
        values, token = ask()
        spent += time.perf_counter() - began
        value = problem.value(values)
        began = time.perf_counter()
        tell(token, value)  # some choose their next set here
        spent += time.perf_counter() - began
        lowest = min(lowest, value)
        best.append(lowest)
    return best, spent / trials


if __name__ == "__main__":
    sys.exit("error: this is now, in a copy of the repository: python -m benchmarks.regret")
