"""BBOB and a mixed space, for `python -m benchmarks.regret`.

BBOB is the suite of 24 noiseless functions of COCO (Hansen and others, arXiv 1603.08785), from the
package coco-experiment. The mixed space has 12 parameters: four real, four whole, four categories.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tutorial_dl.tuning.problems import Problem, branin, cube, hartmann
from tutorial_dl.tuning.space import Space

BBOB = range(1, 25)
REACH = 5.0  # BBOB's functions are searched from -5 to 5


def bbob(function: int, instance: int, dimension: int) -> Problem:
    """One of BBOB's functions, 1 to 24, in an instance (a shift and a rotation)."""
    problem = _suite(dimension).get_problem_by_function_dimension_instance(
        function, dimension, instance
    )
    space = cube(dimension, -REACH, REACH)
    names = space.names

    def value(values: Mapping) -> float:
        return float(problem(np.array([values[name] for name in names])))

    return Problem(f"f{function} in {dimension}", space, value, float(problem(_minimum(problem))))


def _minimum(problem) -> np.ndarray:
    """Where COCO says that a problem is lowest; it tells so in a file of the current folder."""
    here = os.getcwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            problem._best_parameter("print")
            return np.loadtxt(next(Path(folder).iterdir()))
        finally:
            os.chdir(here)


@cache
def _suite(dimension: int):
    import cocoex

    return cocoex.Suite("bbob", "", f"dimensions:{dimension} instance_indices:1-5")


def mixed(instance: int = 1) -> Problem:
    """12 parameters: 4 real, 4 whole (of 11 values), 4 categories of 3 choices.

    The numbers are those of BBOB's function 15 (Rastrigin's, rotated) in 10 dimensions; the
    categories choose the other two numbers, two categories each. Its exact minimum isn't known
    there: `lowest` is that of function 15.
    """
    inner = bbob(15, instance, 10)
    numbers = {f"x{i}": FloatDistribution(-REACH, REACH) for i in range(4)}
    whole = {f"n{i}": IntDistribution(0, 10) for i in range(4)}
    letters = {f"c{i}": CategoricalDistribution(("a", "b", "c")) for i in range(4)}

    def value(values: Mapping) -> float:
        x = [values[f"x{i}"] for i in range(4)] + [values[f"n{i}"] - REACH for i in range(4)]
        for i in (0, 2):
            place = 3 * "abc".index(values[f"c{i}"]) + "abc".index(values[f"c{i + 1}"])
            x.append(-REACH + 2 * REACH * place / 8)
        return inner.value({f"x{i}": number for i, number in enumerate(x)})

    return Problem("mixed 12", Space(numbers | whole | letters), value, inner.lowest)


KINDS = ("bbob", "branin", "hartmann", "mixed")
INSTANCES = 5


def suite(
    dimensions: list[int],
    seeds: int,
    functions: Iterable[int] = BBOB,
    kinds: Iterable[str] = KINDS,
) -> Iterator[tuple[int, Problem]]:
    """(seed, problem): `functions` of BBOB in these dimensions, and the others of `kinds`.

    Each problem comes once per seed, 1 to `seeds`, in the instance 1 + (seed - 1) mod 5.
    """
    of_seed = {seed: 1 + (seed - 1) % INSTANCES for seed in range(1, seeds + 1)}
    if "bbob" in kinds:
        for dimension in dimensions:
            for function in functions:
                for seed, instance in of_seed.items():
                    yield seed, bbob(function, instance, dimension)
    for seed, instance in of_seed.items():
        made = {"branin": branin, "hartmann": hartmann, "mixed": lambda i=instance: mixed(i)}
        for kind, make in made.items():
            if kind in kinds:
                yield seed, make()
