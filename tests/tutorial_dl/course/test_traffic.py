"""Trips through memory are counted as by hand."""

import doctest

import numpy as np
import pytest

from tutorial_dl.course import traffic
from tutorial_dl.course.traffic import Trip, moved, trips


def test_the_examples():
    assert doctest.testmod(traffic, extraglobs={"np": np}).failed == 0


def vectors(*names):
    return {name: np.arange(1.0, 7.0) for name in names}


def test_operations_in_order_and_their_result():
    given = vectors("x", "y", "t")

    def f(x, y, t, factor):
        np.multiply(x, y, out=t)
        t *= factor
        y += t
        np.sqrt(y, out=x)

    plan = trips(f, **given, factor=2.0)
    assert plan == [
        Trip("multiply", ("x", "y"), ("t",)),
        Trip("multiply", ("t",), ("t",)),
        Trip("add", ("y", "t"), ("y",)),
        Trip("sqrt", ("y",), ("x",)),
    ]
    assert moved(plan) == 4 + 2 + 3 + 3  # t, and then x, are overwritten: fetched first
    assert [trip.fetches for trip in plan] == [("t",), (), (), ("x",)]
    a = np.arange(1.0, 7.0)
    np.testing.assert_array_equal(given["x"], np.sqrt(a + 2 * a * a))
    assert type(given["x"]) is np.ndarray


def test_a_vector_read_twice_in_one_operation_counts_once():
    assert trips(lambda g: np.multiply(g, g, out=g), **vectors("g")) == [
        Trip("multiply", ("g",), ("g",))
    ]


def test_results_without_a_place_are_vectors_too():
    def f(m, g):
        m[:] = 0.9 * m + 0.1 * g

    plan = trips(f, **vectors("m", "g"))
    assert [trip.operation for trip in plan] == ["multiply", "multiply", "add", "copy"]
    assert plan[2] == Trip("add", ("new 1", "new 2"), ("new 3",))
    assert plan[3] == Trip("copy", ("new 3",), ("m",)) and moved(plan) == 3 + 3 + 4 + 3


def test_slices_are_parts_of_their_vector():
    def f(x):
        x[:3] *= 2.0
        x[4:] = 1.0
        x[3:5] = x[:2]

    given = vectors("x")
    assert trips(f, **given) == [
        Trip("multiply", ("x",), ("x",)),
        Trip("copy", (), ("x",)),
        Trip("copy", ("x",), ("x",)),
    ]
    np.testing.assert_array_equal(given["x"], [2, 4, 6, 2, 4, 1])


@pytest.mark.parametrize("f", [lambda x: np.add.reduce(x), lambda x: x @ x])
def test_what_is_not_elementwise_is_refused(f):
    with pytest.raises(ValueError, match="only elementwise operations are counted"):
        trips(f, **vectors("x"))
