"""Notebook 12: folded solutions pass, wrong answers get a hint, the right numbers hold in runs."""

import numpy as np
import pytest
from exercise_cells import of_exercises, says

from numba_kernels.optimizers import SGD
from tutorial_dl.course import foundations
from tutorial_dl.strategies.downpour import Downpour
from tutorial_dl.strategies.scripted import Scripted

test_solutions, test_open_cells = of_exercises(
    "12", "12.delayed", "12.workers", np=np, foundations=foundations
)


def path(delay, first=1):
    def answer(eta, tau, x0, steps):
        x = [x0]
        for t in range(steps):
            x.append(x[t] - eta * x[delay(t, tau)])
        return x[1 - first :]

    return answer


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (path(lambda t, tau: t), "all your gradients are fresh; they should be 1 updates old"),
        (path(lambda t, tau: max(t - tau, 0), first=0), "6 numbers; x0 itself and 6 after it"),
        (path(lambda t, tau: max(t - tau - 1, 0)), "tau = 1, x0 = 1.0, steps = 6: the path is off"),
        (path(lambda t, tau: t - tau), "IndexError"),  # reads x[-3], though x[0] is the first
        (lambda eta, tau, x0, steps: None, "returns nothing"),
        (3, "a function is asked for, not 3"),
    ],
)
def test_wrong_paths(capsys, wrong, message):
    assert message in says(capsys, "12.delayed", wrong)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((7, 4), "with 7 workers the rate 0.05 is above the bound, 0.0482"),  # 2 sin(pi/26) / 5
        ((5, 4), "plain: stable with 5, but also with more"),
        ((6, 5), "staleness-aware: with 5 workers the rate 0.35 is above the bound, 0.347"),
        ((6, 1), "staleness-aware: stable with 1, but also with more"),
        ((6, 3.5), "got 3.5"),
        ((6, True), "got True"),
        (6, "two numbers"),
        ((6, None), "put your answer"),
    ],
)
def test_wrong_numbers_of_workers(capsys, answer, message):
    assert message in says(capsys, "12.workers", answer)


@pytest.mark.parametrize(("rate", "aware", "most"), [(0.05, False, 6), (0.35, True, 4)])
def test_the_right_numbers_are_those_of_runs(rate, aware, most):
    """With the ranks' own rule and h = 5, `most` workers converge, and one more diverges."""
    ends = []
    for workers in (most, most + 1):
        run = Scripted(Downpour(staleness_aware=aware), lambda x: 5 * x, [1.0], workers, SGD(rate))
        x = run.turns(t % workers for t in range(8000))
        ends.append(np.abs(x[-50:]).max())
    assert ends[0] < 1e-2 < 1e2 < ends[1]
