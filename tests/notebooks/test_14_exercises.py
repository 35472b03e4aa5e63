"""Notebook 14: folded solutions pass, wrong answers get a hint, the right numbers hold in runs."""

import numpy as np
import pytest
from exercise_cells import of_exercises, run, says
from notebook_cells import Notebook

from numba_kernels.optimizers import SGD
from tutorial_dl.course.exercises import check
from tutorial_dl.strategies import GradientEnergyMatching, Scripted

test_solutions, test_open_cells = of_exercises("14", "14.commit", "14.kappa", np=np)


def commit(body):
    """The function `commit` with `body` in place of the clipping and the product."""

    def answer(g, m, theta, s, eta, mu, kappa):
        D = -eta * g
        m = mu * m + D
        with np.errstate(divide="ignore", invalid="ignore"):
            pi = (kappa * np.abs(m) - np.abs(theta - s)) / np.abs(D)
        return body(np.where(D == 0, 0, pi), D), m

    return answer


def right(g, m, theta, s, eta, mu, kappa):
    return commit(lambda pi, D: np.clip(pi, 0, 5) * D)(g, m, theta, s, eta, mu, kappa)


def in_place(g, m, theta, s, eta, mu, kappa):
    found = right(g, m, theta, s, eta, mu, kappa)
    m[:] = found[1]
    return found


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (commit(lambda pi, D: np.minimum(pi, 5) * D), "nothing is left: pi must be at least 0"),
        (commit(lambda pi, D: np.maximum(pi, 0) * D), "above the limit: pi must be at most 5"),
        (commit(lambda pi, D: np.clip(pi, 0, 5)), "no weight has moved: you return pi"),
        (commit(lambda pi, D: np.clip(pi.mean(), 0, 5) * D), "you use one pi for all weights"),
        (commit(lambda pi, D: np.clip(pi, 0, 5) * -D), "the commit is off by up to 0.2"),
        (lambda g, m, *rest: (right(g, m, *rest)[0], m), "the new m is off by up to 0.11"),
        (
            lambda g, m, theta, s, eta, mu, kappa: right(g, m, theta, s, eta, mu, 1.0),
            "the commit is off",
        ),
        (lambda *given: right(*given)[0], "new m"),  # returns one array in place of a pair
        (in_place, "right, but your function changed its input arrays"),
        (lambda *given: None, "returns nothing"),
        (3, "a function is asked for, not 3"),
    ],
)
def test_wrong_commits(capsys, wrong, message):
    assert message in says(capsys, "14.commit", wrong)


def test_the_right_commit_passes():
    assert check("14.commit", right) is True


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((1.0, 0.5), "kappa for 8 workers, 1, is too low by 0.125"),
        ((9 / 8, 1.0), "the fastest pace of one worker, 1, is too high by 0.5"),
        ((8 / 9, 0.5), "is too low"),
        (1.125, "two numbers"),
        ((1.125, None), "put your answer"),
    ],
)
def test_wrong_paces(capsys, answer, message):
    assert message in says(capsys, "14.kappa", answer)


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
