"""Notebook 09: the solutions pass, wrong answers are explained, the limit is the right one."""

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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda t, start, rate, n: rate, "the rate at steps 0 to 9 is off by up to 0.62"),
        (
            lambda t, start, rate, n: start + (rate - start) * min(t + 1, n) / max(n, 1),
            "one step ahead; step 0 should have the rate 0.02",
        ),
        # It starts at 0, not at `start`: it is 0.02 too low at step 0, and less so later.
        (lambda t, start, rate, n: rate * min(t, n) / max(n, 1), "is off by up to 0.02"),
        # It keeps rising: at step 11 it is one step of 0.062 too high.
        (
            lambda t, start, rate, n: start + (rate - start) * t / n if n else rate,
            "at step 11, 0.702, is too high by 0.062",
        ),
        (lambda t, start, rate, n: start + (rate - start) * min(t / n, 1), "ZeroDivisionError"),
        (lambda t, start, rate, n: None, "the function returns nothing"),
        (lambda t, start, rate, n: "fast", "should be made of numbers"),
        (lambda t, start, rate, n: max(rate, start), "off by up to 0.62"),
        (0.5, "a function is asked for, not 0.5"),
    ],
)
def test_wrong_warm_ups(capsys, wrong, message):
    assert message in says(capsys, "09.warm_up", wrong)


def test_a_warm_up_that_only_rises_is_found(capsys):
    """If the target rate is lower than the first rate, a warm-up must go down."""

    def answer(step, start, rate, steps):
        return min(rate, schedules.warm_up(rate, steps, start)(step))

    assert "start = 0.5, rate = 0.1" in says(capsys, "09.warm_up", answer)


# The largest batches ---------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [(512, 8192), [np.int64(512), 8192.0]])
def test_right_batches(capsys, answer):
    assert check("09.batches", answer) is True
    # By hand: 2 x 1.9 / 5 = 0.76; ceil(50,000 / 512, / 8192, / 64) = 98, 7, 782.
    said = capsys.readouterr().out
    assert "stay below 0.76; they leave 98 and 7 updates" in said and "make 782" in said


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((1024, 8192), "linear rule: at batch 1024 the rate is 0.8, above"),  # 16 x 0.05
        ((256, 8192), "linear rule: 256 is stable, but not the largest"),
        ((512, 16384), "square-root rule: at batch 16384 the rate is 0.8,"),  # sqrt(256) x 0.05
        ((512, 512), "square-root rule: 512 is stable, but not"),
        ((972.8, 8192), "one of 64, 128, ..., 32768, got 972.8"),
        ((True, 8192), "got True"),
        ((512,), "two numbers"),
        (512, "two numbers"),
        ((512, None), "put your answer"),
    ],
)
def test_wrong_batches(capsys, answer, message):
    assert message in says(capsys, "09.batches", answer)


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
