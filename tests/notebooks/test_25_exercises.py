"""Notebook 25: folded solutions pass, and wrong answers get a hint."""

import numpy as np
import pytest
from exercise_cells import of_exercises, says
from sklearn.model_selection import KFold

from tutorial_dl.course.exercises import check

test_solutions, test_open_cells = of_exercises("25", "25.samples", "25.held_out", np=np)


def test_the_right_number_is_that_of_draws():
    """The accuracy of 900 answers, each right with a chance of 0.9, varies by 0.01."""
    right = np.random.default_rng(0).binomial(900, 0.9, 100_000) / 900
    assert right.std() == pytest.approx(0.01, rel=0.01)


def test_other_ways_to_cut_are_right():
    def by_scikit_learn(n, k):
        return [held for _, held in KFold(k).split(np.zeros(n))]

    assert check("25.held_out", by_scikit_learn)
    assert check("25.held_out", lambda n, k: np.array_split(np.arange(n), k))
    assert check("25.held_out", lambda n, k: [list(range(i, n, k)) for i in range(k)])


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("25.samples", 9, "it falls with sqrt(n)"),
        ("25.samples", 9000, "both chances"),
        ("25.samples", 2500, "not of a half"),
        ("25.samples", 30, "square it"),
        ("25.held_out", lambda n, k: [np.arange(n)], "there must be 3 folds, got 1"),
        ("25.held_out", lambda n, k: [np.arange(n)] * k, "sample 0 is in more than one fold"),
        ("25.held_out", lambda n, k: [np.arange(i * (n // k), (i + 1) * (n // k))
                                      for i in range(k)], "sample 9 is in no fold"),
        ("25.held_out", lambda n, k: [np.arange(n - k + 1), *([i] for i in range(n - k + 1, n))],
         "differ by more than one"),
        ("25.held_out", lambda n, k: [np.arange(1 + i, n + 1, k) for i in range(k)],
         "indices go from 0 to 9"),
        ("25.held_out", lambda n, k: [np.arange(n) % k == i for i in range(k)], "whole numbers"),
    ],
)  # fmt: skip
def test_hints(capsys, exercise, answer, hint):
    assert hint in says(capsys, exercise, answer)
