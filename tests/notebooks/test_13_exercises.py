"""Notebook 13: folded solutions pass, wrong answers get a hint, the right numbers hold in runs."""

import numpy as np
import pytest
from exercise_cells import of_exercises, says

from numba_kernels.optimizers import SGD
from tutorial_dl.course.exercises import check
from tutorial_dl.strategies import ElasticAveraging, Rule, Scripted

test_solutions, test_open_cells = of_exercises("13", "13.springs", "13.moving_rates", np=np)


class Right(Rule):
    def step(self, x, g, server, due):
        if due:
            server.push(x, into=x)
        x -= self.rate * g

    def serve(self, center, sent, answer):
        d = 0.9 / self.workers * (sent - center)
        center += d
        answer[:] = sent - d


class NoStep(Right):
    def step(self, x, g, server, due):
        if due:
            server.push(x, into=x)


class NoPull(Right):
    def step(self, x, g, server, due):
        if due:
            server.push(x)
        x -= self.rate * g


class AlwaysDue(Right):
    def step(self, x, g, server, due):
        super().step(x, g, server, True)


class StepFirst(Right):  # the vector that is sent includes the gradient step
    def step(self, x, g, server, due):
        x -= self.rate * g
        if due:
            server.push(x, into=x)


class StiffCenter(Right):
    def serve(self, center, sent, answer):
        answer[:] = sent - 0.9 / self.workers * (sent - center)


class WholeBeta(Right):  # alpha = beta, whatever the number of workers
    def serve(self, center, sent, answer):
        d = 0.9 * (sent - center)
        center += d
        answer[:] = sent - d


class OnlyWhenDue(Right):
    def step(self, x, g, server, due):
        if due:
            super().step(x, g, server, due)


class HalfOfTwo(Right):  # right for two workers only
    def serve(self, center, sent, answer):
        d = 0.45 * (sent - center)
        center += d
        answer[:] = sent - d


def test_the_packages_own_rule_passes():
    assert check("13.springs", ElasticAveraging) is True


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (NoStep, "worker 0): the spring is right, but the worker took no gradient step"),
        (NoPull, "the worker stepped, but its spring did not pull"),
        (AlwaysDue, "every 2: step 1 (worker 0): the center is off"),
        (StepFirst, "every 1: step 1 (worker 0): the center is off"),
        (StiffCenter, "the center is off by up to 0.9"),  # 0.45 (2 - 0)
        (WholeBeta, "the center is off by up to 0.9"),
        (OnlyWhenDue, "every 2: step 1 (worker 0): no exchange is due"),
        (HalfOfTwo, "3 workers, exchange every 1: step 1 (worker 0): the center is off"),
        (Right(), "a class derived from Rule"),
        (int, "a class derived from Rule"),
        (Rule, "still to be written"),
    ],
)
def test_wrong_rules(capsys, wrong, message):
    assert message in says(capsys, "13.springs", wrong)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((1.0, 1.5), "they meet: the workers move too, by alpha = beta / 3"),
        ((0.75, 2), "they swing: the workers move too"),
        ((0.5, 1.5), "they meet: the moving rate, 0.5, is too low by 0.25"),
        ((0.75, 1.333), "they swing: the moving rate, 1.333, is too low"),
        (0.75, "two moving rates"),
        ((0.75, None), "put your answer"),
    ],
)
def test_wrong_moving_rates(capsys, answer, message):
    assert message in says(capsys, "13.moving_rates", answer)


@pytest.mark.parametrize(("moving_rate", "factor"), [(0.75, 0.0), (1.5, -1.0), (1.6, -17 / 15)])
def test_the_right_moving_rates_are_those_of_the_rule(moving_rate, factor):
    rule = ElasticAveraging(moving_rate=moving_rate, synchronous=True)
    run = Scripted(rule, lambda x: 0 * x, [0.0], 3, SGD(0.1))
    for i, x in enumerate(run.x):
        x[:] = i + 1.0
    before = np.mean(run.x) - run.center[0]
    run.round()
    assert np.mean(run.x) - run.center[0] == pytest.approx(factor * before, abs=1e-12)
