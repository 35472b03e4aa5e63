"""Notebook 16: the solution of exercise 1 is where both ways reduce equally many numbers."""

import numpy as np
from exercise_cells import of_exercises
from notebook_cells import Notebook

from tutorial_dl.replica import LayeredReplica
from tutorial_dl.replica.layers import Dense

test_solutions, test_open_cells = of_exercises("16", "16.batch", np=np)


def test_both_ways_reduce_equally_many_numbers_there():
    names = {"check": lambda *answer: None}
    exec(Notebook("16").solution_of("16.batch"), names)
    layers = [Dense("first", 1024, 4096), Dense("second", 4096, 1024)]
    biases = 4096 + 1024
    gradient = LayeredReplica(layers, "mse").gradient.size - biases
    assert 2 * names["samples"] * 1024 == gradient  # forward and backward, (s, 1024) each
