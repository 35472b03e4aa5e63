"""One master and its workers: formulas against Erlang's sum and against simulated exchanges."""

from __future__ import annotations

import doctest
from math import factorial

import numpy as np
import pytest

from tutorial_dl.course.foundations import queueing
from tutorial_dl.course.foundations.queueing import (
    first_come_first_served,
    random_throughput,
    regular_throughput,
    saturation,
)


def test_the_examples():
    assert doctest.testmod(queueing).failed == 0


@pytest.mark.parametrize("ratio", [0.2, 1.0, 3.0, 20.0])  # c / s
def test_random_times_are_erlangs_formula(ratio):
    serve = 0.004
    for workers in range(1, 13):
        terms = [factorial(workers) / factorial(workers - k) / ratio**k for k in range(workers + 1)]
        expected = (1 - 1 / sum(terms)) / serve
        assert random_throughput(workers, ratio * serve, serve) == pytest.approx(expected)


@pytest.mark.parametrize(("compute", "serve"), [(0.04, 0.01), (0.01, 0.01), (0.005, 0.02)])
def test_the_bound_holds_and_is_met_by_regular_times(compute, serve):
    for workers in (1, 2, 3, 5, 8):
        rows = first_come_first_served(np.full((workers, 400), compute), np.full(1000, serve))
        late = rows[len(rows) // 2 :, 3]
        found = (len(late) - 1) / (late[-1] - late[0])
        bound = regular_throughput(workers, compute, serve)
        assert found == pytest.approx(bound, rel=0.02)
        assert random_throughput(workers, compute, serve) <= bound * (1 + 1e-12)


def test_random_times_exchange_by_exchange():
    """The mean over 20,000 exchanges is right to 1%."""
    random = np.random.default_rng(0)
    compute, serve = 0.01, 0.01
    for workers, expected in ((1, 50.0), (2, 80.0), (3, 93.75)):  # 1 - 1/2, 1/5, 1/16 of 100
        times = random.exponential(compute, (workers, 20_000))
        rows = first_come_first_served(times, random.exponential(serve, 20_000))
        assert len(rows) / rows[-1, 3] == pytest.approx(expected, rel=0.03)


def test_it_saturates_where_the_two_bounds_meet():
    compute, serve = 0.030, 0.010
    full = saturation(compute, serve)
    assert full == 4 and full / (compute + serve) == pytest.approx(1 / serve)
    rates = [regular_throughput(workers, compute, serve) for workers in range(7)]
    assert rates == pytest.approx([0, 25, 50, 75, 100, 100, 100])
    many = random_throughput(60, compute, serve)
    assert many == pytest.approx(100) and random_throughput(0, compute, serve) == 0


def test_requests_are_served_in_order_of_arrival():
    rows = first_come_first_served([[5.0, 1.0], [1.0, 1.0], [2.0, 9.0]], [3.0] * 9)
    # Worker 1 is served from 1 to 4, worker 2 has asked at 2 and waits; 1 and 0 both ask at 5.
    assert rows[:3].tolist() == [[1, 1, 1, 4], [2, 2, 4, 7], [0, 5, 7, 10]]
    assert rows[3].tolist() == [1, 5, 10, 13] and len(rows) == 4  # it has no third gradient


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: regular_throughput(-1, 1, 1), "workers must be at least 0, got -1"),
        (lambda: random_throughput(2, -1, 1), "compute must be at least 0 seconds, got -1"),
        (lambda: saturation(1, 0), "serve must be above 0 seconds, got 0"),
        (lambda: saturation(float("nan"), 1), "compute .* got nan"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
