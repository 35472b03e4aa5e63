"""Exercises of notebook 03: folded solutions pass, open cells are no error."""

import pytest
from exercise_cells import one_line
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
