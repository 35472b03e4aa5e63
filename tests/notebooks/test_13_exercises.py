"""Notebook 13: folded solutions pass, and the right numbers hold in runs."""

import numpy as np
import pytest
from exercise_cells import of_exercises

from numba_kernels.optimizers import SGD
from tutorial_dl.course.exercises import check
from tutorial_dl.strategies import ElasticAveraging, Scripted

test_solutions, test_open_cells = of_exercises("13", "13.springs", "13.moving_rates", np=np)


def test_the_packages_own_rule_passes():
    assert check("13.springs", ElasticAveraging) is True


@pytest.mark.parametrize(("moving_rate", "factor"), [(0.75, 0.0), (1.5, -1.0), (1.6, -17 / 15)])
def test_the_right_moving_rates_are_those_of_the_rule(moving_rate, factor):
    rule = ElasticAveraging(moving_rate=moving_rate, synchronous=True)
    run = Scripted(rule, lambda x: 0 * x, [0.0], 3, SGD(0.1))
    for i, x in enumerate(run.x):
        x[:] = i + 1.0
    before = np.mean(run.x) - run.center[0]
    run.round()
    assert np.mean(run.x) - run.center[0] == pytest.approx(factor * before, abs=1e-12)
