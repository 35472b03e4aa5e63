"""Learning rates as functions of the step: closed forms, and momentum where they change."""

import math

import numpy as np
import pytest

from numba_kernels.optimizers import LARS, SGD, Adam, RMSprop
from tutorial_dl.training import schedules
from tutorial_dl.training.schedules import (
    constant,
    cosine,
    exponential,
    linear_rule,
    piecewise,
    schedule_of,
    square_root_rule,
    step_decay,
    warm_up,
)


def test_rules():
    assert linear_rule(0.1, 8) == pytest.approx(0.8)
    assert square_root_rule(0.1, 16) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (constant(0.3), {0: 0.3, 1000: 0.3}),
        (step_decay(1.0, 10, 0.1), {0: 1, 9: 1, 10: 0.1, 19: 0.1, 20: 0.01}),
        (exponential(1.0, 10, 0.25), {0: 1, 5: 0.5, 10: 0.25, 20: 0.0625}),
        (cosine(2.0, 12), {0: 2, 3: 1 + math.sqrt(0.5), 4: 1.5, 6: 1, 8: 0.5, 12: 0, 99: 0}),
        (cosine(2.0, 12, end=1.0), {0: 2, 6: 1.5, 12: 1, 99: 1}),
        (piecewise({0: 0.1, 5: 0.01, 7: 1.0}), {0: 0.1, 4: 0.1, 5: 0.01, 6: 0.01, 7: 1, 50: 1}),
        (warm_up(0.8, 4, start=0.4), {0: 0.4, 1: 0.5, 3: 0.7, 4: 0.8, 9: 0.8}),
        (warm_up(step_decay(1.0, 10, 0.1), 5), {0: 0, 1: 0.2, 5: 1, 9: 1, 10: 0.1}),
        (warm_up(0.8, 0), {0: 0.8}),
        (schedule_of(lambda step: 1 / (1 + step)), {0: 1, 3: 0.25}),
    ],
)
def test_rates(schedule, rates):
    assert {step: schedule(step) for step in rates} == pytest.approx(rates)


def test_what_is_refused():
    for wrong in (
        lambda: cosine(-1, 10),
        lambda: cosine(0.1, 0),
        lambda: constant(math.inf),
        lambda: constant(math.nan),
        lambda: warm_up(0.1, -1),
        lambda: piecewise({1: 0.1}),
        lambda: linear_rule(0.1, 0),
    ):
        with pytest.raises(ValueError, match=r"must be (finite and (above|at least) 0|0), got"):
            wrong()
    with pytest.raises(TypeError, match="a number or a function of the step"):
        schedule_of("cosine")


def test_they_say_what_they_are_and_plot_it():
    schedule = schedules.warm_up(schedules.cosine(0.4, 100), 20, start=0.1)
    assert repr(schedule) == "warm_up(cosine(0.4, 100), 20, start=0.1)"
    (ax,) = schedule.plot(100).axes
    assert ax.get_title(loc="left") and ax.get_xlabel() == "step"
    (line,) = ax.lines
    assert line.get_ydata().tolist() == [schedule(step) for step in range(101)]
    assert schedule.plot(100).axes[0].get_legend().get_texts()[0].get_text() == repr(schedule)


RATES = (0.1, 0.2, 0.4, 0.04, 0.0, 0.3)


def velocity_without_rates(w, gradients, mu):
    """v <- mu v + g; w <- w - eta v needs no correction when the rate changes."""
    v = np.zeros_like(w)
    for rate, g in zip(RATES[:4], gradients, strict=False):
        v = mu * v + g
        w = w - rate * v
    return w


def test_momentum_correction():
    random = np.random.default_rng(0)
    w, gradients = random.normal(size=7), random.normal(size=(6, 7))
    for corrected in (True, False):
        mine, rule = w.copy(), SGD(learning_rate=RATES[0], momentum=0.9)
        state = rule.init(7, np.float64)
        for rate, g in zip(RATES[:4], gradients, strict=False):
            rule = rule.at_rate(rate, state if corrected else None)
            rule.update(mine, g, state)
        same = np.allclose(mine, velocity_without_rates(w, gradients, 0.9), rtol=1e-14)
        assert same == corrected


def test_whose_velocity_is_scaled():
    for rule, scaled in (
        (SGD(0.1), []),
        (SGD(0.1, momentum=0.9), [0]),
        (LARS(0.1), [0]),
        (RMSprop(0.1), []),
        (RMSprop(0.1, momentum=0.9, centered=True), [1]),
        (Adam(0.1), []),
    ):
        state = rule.init(3, segments=[0])
        state.slots[:] = 1
        assert rule.at_rate(0.3, state).learning_rate == 0.3
        expected = np.ones_like(state.slots)
        expected[scaled] = 3
        np.testing.assert_allclose(state.slots, expected, rtol=1e-6)
        rule.at_rate(0.0).at_rate(0.5, state)  # from a rate of 0 there is no factor
        np.testing.assert_allclose(state.slots, expected, rtol=1e-6)
