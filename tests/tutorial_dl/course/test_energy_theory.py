"""The pace of gradient energy matching: a closed form against the rule that ranks use."""

from __future__ import annotations

import doctest

import pytest

from numba_kernels.optimizers import SGD
from tutorial_dl.course.foundations import rules
from tutorial_dl.strategies import Downpour, GradientEnergyMatching, Scripted


def pace(rule, workers, sgd):
    """The pace of the last 100 of 300 rounds on a slope of 1; momentum 0.9 alone has pace 1."""
    run = Scripted(rule, lambda x: 1 + 0 * x, [0.0], workers, sgd)
    x = run.turns(t % workers for t in range(300 * workers))[:, 0]
    return (x[-1 - 100 * workers] - x[-1]) / 100 / (sgd.learning_rate / (1 - 0.9))


def test_the_examples():
    assert doctest.testmod(rules).failed == 0


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
def test_in_turn_they_keep_the_pace(workers, kappa):
    found = pace(GradientEnergyMatching(kappa, 0.9), workers, SGD(0.01))
    assert found == pytest.approx(rules.matched_pace(workers, kappa, 0.9), rel=1e-3)


@pytest.mark.parametrize("workers", [1, 4])
def test_the_unit_is_one_process_and_downpour_is_faster_by_its_workers(workers):
    assert pace(Downpour(), workers, SGD(0.01, momentum=0.9)) == pytest.approx(workers, rel=1e-3)


def test_no_workers():
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        rules.matched_pace(0, 1.0, 0.9)
