"""Notebook 20: folded solutions pass, open cells are no error, mistakes are named; the duel."""

import numpy as np
import pytest
from exercise_cells import one_line, says
from notebook_cells import Notebook

from tutorial_dl.course import foundations, plotting
from tutorial_dl.course.exercises import check

NOTEBOOK = Notebook("20")


@pytest.mark.parametrize("exercise", ["20.penalty", "20.best_score"])
def test_the_folded_solution_is_correct_and_the_open_cell_is_not_yet(exercise, capsys):
    names = {"np": np, "check": check}
    exec(NOTEBOOK.open_cell(exercise), names)
    one_line(capsys, "not yet: ")
    exec(NOTEBOOK.solution_of(exercise), names)
    one_line(capsys, "correct: ")


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("20.penalty", 0.04, "how much of it does a penalty take away"),
        ("20.penalty", 0.4, "in the determinant twice"),
        ("20.penalty", 0.2, "the square of the factor"),
        ("20.penalty", -0.1, "is the sign right"),
        ("20.penalty", 1.0198, "the factor of a step"),
        ("20.penalty", "a", "must be a number"),
        ("20.best_score", lambda p, q: np.log(q / p), "which density belongs on top"),
        ("20.best_score", lambda p, q: p / (p + q), "this is the probability"),
        ("20.best_score", lambda p, q: p / q, "the score is its logarithm"),
    ],
)
def test_a_mistake_is_named(exercise, answer, hint, capsys):
    assert hint in says(capsys, exercise, answer)


@pytest.mark.parametrize("answer", [0.1, np.float32(0.1), 1 / 10, 0.4 / 4])
def test_forms_of_the_right_answer(answer, capsys):
    check("20.penalty", answer)
    one_line(capsys, "correct: ")


@pytest.mark.parametrize("way", ["at once", "in turn"])
def test_the_duel_follows_its_matrix(way):
    rate, penalty = 0.3, 0.2
    path = foundations.duel((1e-5, 2e-5), rate, 6, way, penalty)
    expected = np.linalg.matrix_power(foundations.duel_matrix(rate, way, penalty), 6) @ path[0]
    np.testing.assert_allclose(path[-1], expected, rtol=1e-8)
    assert foundations.duel_factor(rate, "at once") == pytest.approx(np.sqrt(1 + rate**2 / 4))
    assert foundations.duel_factor(rate, "in turn") == pytest.approx(1)
    with pytest.raises(ValueError, match=r'way must be "at once" or "in turn", got .both'):
        foundations.duel((1, 0), rate, 1, "both")


def test_figures_show_their_data():
    path = foundations.duel((0.5, 0.0), 0.4, 5)
    ax = plotting.duels({"one": path}).axes[0]
    np.testing.assert_array_equal(np.transpose(ax.get_lines()[0].get_data()), path)
    factors = plotting.duel_factors([0.1, 0.2], {"a": [1, 1.1]}, {"a": lambda rate: 1 + rate})
    np.testing.assert_array_equal(factors.axes[0].get_lines()[0].get_ydata(), [1, 1.1])
    found = plotting.distances_by_epoch({"weights": [1.0, 0.5]}).axes[0].get_lines()[0]
    np.testing.assert_array_equal(np.transpose(found.get_data()), [[1, 1.0], [2, 0.5]])
    made = np.random.default_rng(0).normal(size=500)
    film = plotting.forger_film(made, [("first", made, np.tanh)], -3, 3, bins=6)
    assert film is not None
