"""Notebook 12: folded solutions pass, and the right numbers hold in runs."""

import numpy as np
import pytest
from exercise_cells import of_exercises

from numba_kernels.optimizers import SGD
from tutorial_dl.course import foundations
from tutorial_dl.strategies.downpour import Downpour
from tutorial_dl.strategies.scripted import Scripted

test_solutions, test_open_cells = of_exercises(
    "12", "12.delayed", "12.workers", np=np, foundations=foundations
)


@pytest.mark.parametrize(("rate", "aware", "most"), [(0.05, False, 6), (0.35, True, 4)])
def test_the_right_numbers_are_those_of_runs(rate, aware, most):
    """With the ranks' own rule and h = 5, `most` workers converge, and one more diverges."""
    ends = []
    for workers in (most, most + 1):
        run = Scripted(Downpour(staleness_aware=aware), lambda x: 5 * x, [1.0], workers, SGD(rate))
        x = run.turns(t % workers for t in range(8000))
        ends.append(np.abs(x[-50:]).max())
    assert ends[0] < 1e-2 < 1e2 < ends[1]
