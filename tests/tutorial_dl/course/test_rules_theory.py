"""Asynchronous rules on a parabola: closed forms against the rules that ranks use."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from numba_kernels.optimizers import SGD
from tutorial_dl.course.foundations import rules
from tutorial_dl.course.foundations.rules import (
    delay_bound,
    delayed_descent,
    delayed_growth,
    implicit_momentum,
    largest_rate,
    matched_pace,
    random_order_path,
    resting_places,
)
from tutorial_dl.strategies import Downpour, ElasticAveraging, GradientEnergyMatching, Scripted

# Staleness -------------------------------------------------------------------------------------


def test_the_examples():
    assert doctest.testmod(rules).failed == 0


@pytest.mark.parametrize(("tau", "bound"), enumerate([2, 1, 0.6180, 0.4450, 0.3473]))
def test_the_bound_has_the_known_values(tau, bound):
    assert delay_bound(tau) == pytest.approx(bound, abs=5e-5)
    assert delay_bound(tau, curvature=4.0) == pytest.approx(bound / 4, abs=5e-5)


@pytest.mark.parametrize("tau", [0, 1, 2, 3, 4, 7, 15])
def test_the_bound_is_where_a_root_leaves_the_unit_circle(tau):
    """numpy computes the roots of z^(tau+1) - z^tau + eta h, with h = 3."""

    def largest_root(rate):
        polynomial = np.zeros(tau + 2)
        polynomial[:2] = 1, -1
        polynomial[-1] += 3 * rate
        return np.abs(np.roots(polynomial)).max()

    bound = delay_bound(tau, 3.0)
    assert largest_root(0.999 * bound) < 1 < largest_root(1.001 * bound)
    assert largest_root(bound) == pytest.approx(1, abs=1e-9)
    for rate in (0.3 * bound, 1.2 * bound):
        assert delayed_growth(rate, tau, 3.0) == pytest.approx(largest_root(rate), rel=1e-6)


@pytest.mark.parametrize(
    ("tau", "values"), [(1, [0.9, 0.8, 0.71, 0.63, 0.559, 0.496]), (3, [0.9, 0.8, 0.7, 0.6, 0.51])]
)
def test_the_known_paths(tau, values):
    path = delayed_descent(0.1, tau, 1.0, len(values))
    assert np.allclose(path, [1, *values], atol=1e-12)
    assert np.allclose(delayed_descent(0.05, tau, 2.0, len(values), curvature=2.0), 2 * path)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("tau", [0, 1, 3])
def test_workers_in_turn_follow_the_path(tau, momentum):
    """tau + 1 workers take turns with the ranks' own rule; before the start, x is the start."""
    run = Scripted(
        Downpour(), lambda x: 3 * x, [1.0], tau + 1, SGD(0.05, momentum=momentum)
    )  # fmt: skip
    found = run.turns(t % (tau + 1) for t in range(60))[:, 0]
    assert np.allclose(found, delayed_descent(0.05, tau, 1.0, 60, 3.0, momentum), atol=1e-12)


@pytest.mark.parametrize(("tau", "momentum"), [(0, 0.9), (1, 0.0), (2, 0.9), (5, 0.5)])
def test_the_growth_is_that_of_a_long_path(tau, momentum):
    for rate in (0.9, 1.02):
        rate *= largest_rate(tau, momentum=momentum)
        path = np.abs(delayed_descent(rate, tau, 1.0, 2000, momentum=momentum))
        # x may swing through zero, so the largest value of a window measures its size.
        size = [path[t : t + 200].max() for t in (800, 1800)]
        if size[1] > 1e-290:
            growth = delayed_growth(rate, tau, momentum=momentum)
            assert (size[1] / size[0]) ** (1 / 1000) == pytest.approx(growth, rel=1e-3)


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9])
def test_the_largest_rate_where_there_is_a_formula(mu):
    # Notebook 09 has the bound without delay. A delay of 1 gives z^2 - (1 + mu) z + mu + eta h = 0,
    # whose conjugate roots have the product mu + eta h.
    assert largest_rate(0, 2.0, mu) == pytest.approx((1 + mu) * 2 / 2, rel=1e-5)
    assert largest_rate(1, 2.0, mu) == pytest.approx((1 - mu) / 2, rel=1e-5)
    assert largest_rate(3, 2.0) == pytest.approx(delay_bound(3, 2.0), rel=1e-5)


def test_workers_in_random_order_act_like_momentum():
    """The average over orders is exactly momentum 1 - 1/g at the rate eta / g."""
    workers, rate, steps = 4, 0.4, 30
    random = np.random.default_rng(0)
    paths = [
        Scripted(Downpour(), lambda x: x, [1.0], workers, SGD(rate)).turns(
            random.integers(0, workers, steps)
        )[:, 0]
        for _ in range(1500)
    ]
    predicted = random_order_path(rate, workers, 1.0, steps)
    error = np.std(paths, axis=0, ddof=1) / np.sqrt(len(paths))
    assert (np.abs(np.mean(paths, axis=0) - predicted) <= 4.5 * error + 1e-12).all()
    # From the second step on: x[t+1] - x[t] = q (x[t] - x[t-1]) - eta / g x[t].
    moved = np.diff(predicted)
    q = implicit_momentum(workers)
    assert np.allclose(moved[1:], q * moved[:-1] - rate / workers * predicted[1:-1])
    # One process with the same rate behaves differently.
    assert np.abs(np.mean(paths, axis=0) - delayed_descent(rate, 0, 1.0, steps)).max() > 0.3


# Elastic averaging -----------------------------------------------------------------------------


def springs(moving_rate, gradient, workers, rate, start, rounds):
    """Weights after synchronous rounds, shape (p + 1, n); the last row is the center's."""
    rule = ElasticAveraging(moving_rate=moving_rate, synchronous=True)
    run = Scripted(rule, gradient, np.zeros(len(start[0])), workers, SGD(rate))
    for x, at in zip(run.x, start, strict=True):
        x[:] = at
    for _ in range(rounds):
        run.round()
    return np.array([*run.x, run.center])


def test_they_rest_where_step_and_spring_cancel():
    minima, h = np.array([[1.0, 2.0], [-3.0, 0.0], [0.0, 1.0]]), np.array([1.0, 5.0])
    gradients = [lambda x, a=a: h * (x - a) for a in minima]
    found = springs(0.6, gradients, 3, 0.1, np.zeros((3, 2)), 250)
    x, center = resting_places(0.1, 0.6, minima, h)
    assert np.allclose(found, [*x, center], atol=1e-8)
    assert np.allclose(center, [-2 / 3, 1])
    # alpha = .2 and eta h = .1 and .5 give a third and five sevenths of the way.
    assert np.allclose(x[0], [-2 / 3 + (1 + 2 / 3) / 3, 1 + 5 / 7])


# Gradient energy matching ----------------------------------------------------------------------


def pace(rule, workers, sgd):
    """The pace of the last 100 of 300 rounds on a slope of 1; momentum 0.9 alone has pace 1."""
    run = Scripted(rule, lambda x: 1 + 0 * x, [0.0], workers, sgd)
    x = run.turns(t % workers for t in range(300 * workers))[:, 0]
    return (x[-1 - 100 * workers] - x[-1]) / 100 / (sgd.learning_rate / (1 - 0.9))


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
def test_in_turn_they_keep_the_pace(workers, kappa):
    found = pace(GradientEnergyMatching(kappa, 0.9), workers, SGD(0.01))
    assert found == pytest.approx(matched_pace(workers, kappa, 0.9), rel=1e-3)


@pytest.mark.parametrize("workers", [1, 4])
def test_the_unit_is_one_process_and_downpour_is_faster_by_its_workers(workers):
    assert pace(Downpour(), workers, SGD(0.01, momentum=0.9)) == pytest.approx(workers, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: delay_bound(-1), "tau must be at least 0 updates, got -1"),
        (lambda: delay_bound(1, 0.0), "curvature must be above 0, got 0.0"),
        (lambda: delayed_descent(0.1, -2, 1.0, 3), "tau .* got -2"),
        (lambda: delayed_growth(0.1, -2), "tau .* got -2"),
        (lambda: implicit_momentum(0), "workers must be at least 1, got 0"),
        (lambda: matched_pace(0, 1.0, 0.9), "workers must be at least 1, got 0"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
