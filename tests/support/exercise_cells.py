"""Exercises that need no cluster: what every notebook's must do, and how its judges answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from notebook_cells import Notebook

from tutorial_dl.course.exercises import check


def run(code: str, names: dict) -> dict:
    """What a learner's cell would run, with `names` that the notebook has by then; all names."""
    names = {"check": check, "__name__": "cell"} | names
    exec(compile(code, "cell", "exec"), names)
    return names


def one_line(capsys, beginning: str) -> str:
    """What was printed: it must be one line that begins so."""
    said = capsys.readouterr().out
    assert said.startswith(beginning) and said.count("\n") == 1, said
    return said


def says(capsys, exercise: str, answer) -> str:
    """What a learner is told whose answer is not right."""
    assert check(exercise, answer) is False
    return one_line(capsys, "not yet: ")


def of_exercises(number: str, *exercises: str, **names) -> tuple[Callable, Callable]:
    """Two tests: folded solutions are correct, and cells that are not done are no errors.

    number : of the notebook, as "05"; names : what it has imported before
    """
    notebook = Notebook(number)

    @pytest.mark.parametrize("exercise", exercises)
    def test_the_folded_solution_is_correct(exercise, capsys):
        run(notebook.solution_of(exercise), names)
        one_line(capsys, "correct: ")

    @pytest.mark.parametrize("exercise", exercises)
    def test_a_cell_that_is_not_done_is_no_error(exercise, capsys):
        run(notebook.open_cell(exercise), names)
        one_line(capsys, "not yet: ")

    return test_the_folded_solution_is_correct, test_a_cell_that_is_not_done_is_no_error
