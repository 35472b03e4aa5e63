"""Elastic averaging on parabolas: closed forms against the rule that ranks use."""

from __future__ import annotations

import numpy as np
import pytest

from numba_kernels.optimizers import SGD
from tutorial_dl.course.foundations.rules import center_deviation, elastic_growth, resting_places
from tutorial_dl.strategies.elastic_averaging import ElasticAveraging
from tutorial_dl.strategies.scripted import Scripted


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


@pytest.mark.parametrize(("workers", "moving_rate"), [(1, 0.5), (2, 0.9), (3, 1.3)])
def test_the_growth_is_that_of_rounds(workers, moving_rate):
    """Compare the spread of all weights 60 rounds apart, from a start without symmetry."""
    start = np.arange(1.0, workers + 1)[:, None] ** 2
    size = [
        np.abs(springs(moving_rate, lambda x: x, workers, 0.3, start, rounds)).max()
        for rounds in (120, 180)
    ]
    growth = elastic_growth(0.3, moving_rate, workers, 1.0)
    assert (size[1] / size[0]) ** (1 / 60) == pytest.approx(growth, rel=2e-3)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_on_flat_ground_the_moving_rate_has_a_bound(workers):
    """A round multiplies x - c by 1 - alpha - beta; this is stable for beta below 2 p / (p + 1)."""
    bound = 2 * workers / (workers + 1)
    assert elastic_growth(0.1, 0.99 * bound, workers, 0.0) == pytest.approx(1)
    assert elastic_growth(0.1, 1.01 * bound, workers, 0.0) > 1.01
    start = np.arange(workers)[:, None] + 1.0
    for share, stays in ((0.97, True), (1.03, False)):
        if share * bound < 2:
            end = springs(share * bound, lambda x: 0 * x, workers, 0.1, start, 300)
            assert (np.ptp(end) < 1) == stays


@pytest.mark.parametrize(("workers", "moving_rate"), [(1, 0.3), (2, 0.9), (4, 0.1)])
def test_the_center_averages(workers, moving_rate):
    """4,000 coordinates with independent noise stand for as many runs."""
    random = np.random.default_rng(0)
    end = springs(
        moving_rate, lambda x: 2 * x + 3 * random.normal(size=x.size), workers, 0.2,
        np.zeros((workers, 4000)), 150,
    )  # fmt: skip
    predicted = center_deviation(0.2, moving_rate, workers, 2.0, 3.0)
    # The standard deviation of 4,000 normal numbers is known to 1 / sqrt(8,000) = 1.1%.
    assert end[-1].std() == pytest.approx(predicted, rel=0.05)
    # It is less than that of one process, whose variance is eta noise^2 / (h (2 - eta h)).
    assert predicted < np.sqrt(0.2 * 9 / (2 * (2 - 0.4)) / workers)


def test_what_diverges_has_no_deviation():
    with pytest.raises(ValueError, match=r"learning rate 0\.1, moving rate 1\.9, 1 worker: this"):
        center_deviation(0.1, 1.9, 1)
