"""Notebook 09: the solutions pass, and the limit is the right one."""

import numpy as np
import pytest
from exercise_cells import of_exercises, says

from numba_kernels.optimizers import SGD
from tutorial_dl.course.exercises import check, notebook_09
from tutorial_dl.training import schedules

test_solutions, test_open_cells = of_exercises(
    "09",
    "09.warm_up",
    "09.batches",
    np=np,
    linear_rule=schedules.linear_rule,
    square_root_rule=schedules.square_root_rule,
)


# The warm-up -----------------------------------------------------------------------------------


def test_the_packages_own_warm_up_passes():
    def answer(step, start, rate, steps):
        return schedules.warm_up(rate, steps, start)(step)

    assert check("09.warm_up", answer) is True


def test_a_warm_up_that_only_rises_is_found(capsys):
    """If the target rate is lower than the first rate, a warm-up must go down."""

    def answer(step, start, rate, steps):
        return min(rate, schedules.warm_up(rate, steps, start)(step))

    assert "start = 0.5, rate = 0.1" in says(capsys, "09.warm_up", answer)


# The largest batches ---------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5, notebook_09.MOMENTUM])
def test_the_limit_is_where_descent_turns_unstable(momentum):
    """The optimizer itself turns unstable on a parabola at 2 (1 + mu) / lambda, within 1%."""
    limit = 2 * (1 + momentum) / notebook_09.CURVATURE

    def error_left(rate):
        w, sgd = np.ones(1), SGD(rate, momentum=momentum)
        state = sgd.init(1, np.float64)
        for _ in range(3000):
            sgd.update(w, notebook_09.CURVATURE * w, state)
        return abs(w[0])

    assert error_left(0.99 * limit) < 1e-3 < 1e3 < error_left(1.01 * limit)
