"""Exercises of notebook 03: folded solutions pass, wrong answers get a helpful message."""

import re

import numpy as np
import pytest
from exercise_cells import one_line, says
from notebook_cells import Notebook

NOTEBOOK = Notebook("03")
SOURCES = {cell["id"]: "".join(cell["source"]) for cell in NOTEBOOK.all}


@pytest.mark.parametrize("exercise", ["03.units", "03.backward"])
def test_the_folded_solution_is_correct_and_the_open_cell_is_not_yet(exercise, capsys):
    names = {}
    exec(SOURCES["imports"], names)
    exec(NOTEBOOK.open_cell(exercise), names)
    one_line(capsys, "not yet: ")
    exec(NOTEBOOK.solution_of(exercise), names)
    one_line(capsys, "correct: ")


def gradients(x, y, W1, b1, W2, b2, scale=2, bend=lambda a: a > 0, sign=1):
    a = np.maximum(x @ W1 + b1, 0)
    delta_f = sign * scale / len(x) * (a @ W2 + b2 - y)
    delta_z = (delta_f @ W2.T) * bend(a)
    return x.T @ delta_z, delta_z.sum(axis=0), a.T @ delta_f, delta_f.sum(axis=0)


def tanh_bend(*arrays):
    return gradients(*arrays, bend=lambda a: 1 - a**2)


def no_bend(*arrays):
    return gradients(*arrays, bend=lambda a: 1)


def no_two(*arrays):
    return gradients(*arrays, scale=1)


def no_mean(*arrays):
    return gradients(*arrays, scale=2 * len(arrays[0]))


def uphill(*arrays):
    return gradients(*arrays, sign=-1)


def wrong_shape(*arrays):
    dW1, db1, dW2, db2 = gradients(*arrays)
    return dW1, db1[None], dW2, db2


@pytest.mark.parametrize(
    ("exercise", "answer", "said"),
    [
        ("03.units", 70, "70 units are off by up to 0.001007"),
        ("03.units", 1, "off by up to 1"),
        ("03.units", 72, "but so are fewer"),
        ("03.units", 71.0, "a whole number"),
        ("03.units", True, "a whole number"),
        ("03.units", 0, "a whole number"),
        ("03.units", 10**9, "far more than needed"),
        ("03.backward", 3, "a function is asked for, not 3"),
        ("03.backward", tanh_bend, "is off by up to"),
        ("03.backward", no_bend, "is off by up to"),
        ("03.backward", no_two, "is 0.5 times the right one for s = 1: is the 2/s there?"),
        ("03.backward", no_mean, "is 7 times the right one for s = 7: is the 2/s there?"),
        ("03.backward", uphill, "has the wrong sign"),
        ("03.backward", wrong_shape, "db1 .* should have shape"),
        ("03.backward", lambda *arrays: gradients(*arrays)[:3], "expected four arrays"),
    ],
)
def test_wrong_answers_are_told_how_far_off(exercise, answer, said, capsys):
    assert re.search(said, says(capsys, exercise, answer))
