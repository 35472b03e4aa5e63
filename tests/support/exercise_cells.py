"""Exercises that need no cluster: tests that all of them share, and how checks answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from notebook_cells import Notebook

from tutorial_dl.course.exercises import check


def run(code: str, names: dict) -> dict:
    """Run a cell's code with the `names` defined before it; returns all names."""
    names = {"check": check, "__name__": "cell"} | names
    exec(compile(code, "cell", "exec"), names)
    return names


def one_line(capsys, beginning: str) -> str:
    """The printed text, which must be one line with this beginning."""
    said = capsys.readouterr().out
    assert said.startswith(beginning) and said.count("\n") == 1, said
    return said


def says(capsys, exercise: str, answer) -> str:
    """The line that tells a learner why an answer is wrong."""
    assert check(exercise, answer) is False
    return one_line(capsys, "not yet: ")


def of_exercises(number: str, *exercises: str, **names) -> tuple[Callable, Callable]:
    """Two tests: folded solutions are correct, and unfinished cells raise no error.

    number : the notebook's number, as "05"; names : what it has imported before
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
