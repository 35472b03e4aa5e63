"""Notebook 14: folded solutions pass, and the right numbers hold in runs."""

import numpy as np
import pytest
from exercise_cells import of_exercises, run
from notebook_cells import Notebook

from numba_kernels.optimizers import SGD
from tutorial_dl.strategies import GradientEnergyMatching, Scripted

test_solutions, test_open_cells = of_exercises("14", "14.commit", "14.kappa", np=np)


@pytest.mark.parametrize(("workers", "kappa", "pace"), [(8, 9 / 8, 1.0), (1, 100.0, 0.5)])
def test_the_right_paces_are_those_of_the_rule(workers, kappa, pace):
    rule = GradientEnergyMatching(kappa, 0.9)
    x = Scripted(rule, lambda x: 1 + 0 * x, [0.0], workers, SGD(0.1)).turns(
        t % workers for t in range(200 * workers)
    )
    way = (x[-1 - 100 * workers] - x[-1]) / 100  # per round; eta / (1 - mu) is 1
    assert way == pytest.approx(pace, rel=2e-3)


def test_the_solution_is_the_rule_itself():
    """Both agree along a whole path, also where pi is clipped below or above."""
    commit = run(Notebook("14").solution_of("14.commit"), {"np": np})["commit"]
    h = np.array([1.0, 9.0, 0.1])
    rule = GradientEnergyMatching(1.5, 0.8)
    scripted = Scripted(rule, lambda x: h * x, [1.0, -1.0, 2.0], 2, SGD(0.1))
    m, s = np.zeros((2, 3)), np.ones((2, 3)) * scripted.center
    for turn in range(20):
        worker, theta = turn % 2, scripted.center.copy()
        g = h * scripted.worker(worker)
        moved, m[worker] = commit(g, m[worker], theta, s[worker], 0.1, 0.8, 1.5)
        s[worker] = theta
        scripted.turn(worker)
        assert np.allclose(scripted.center, theta + moved, atol=1e-12)
