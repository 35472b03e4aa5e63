"""Every exercise: its folded solution is right, and its open cell is no error.

Exercises of %%px cells are in test_answers_on_ranks.py.
"""

import io
import json
import re
import tempfile
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from exercise_cells import one_line, run
from notebook_cells import Notebook
from small_notebooks import small

from tutorial_dl.cli.notebooks import notebook_files
from tutorial_dl.course import foundations
from tutorial_dl.course.exercises import NotYet, call, check, close
from tutorial_dl.layout import Layout
from tutorial_dl.simulate import steps
from tutorial_dl.training import schedules

NUMBERS = [path.name[:2] for path in notebook_files()]


def asked(number: str) -> list[str]:
    """The exercises that a notebook's cells check in its own process."""
    cells = [cell for cell in Notebook(number).cells("code") if not cell.startswith("%")]
    return re.findall(r'check\("([^"]+)"', "\n".join(cells))


EXERCISES = [exercise for number in NUMBERS for exercise in asked(number)]
SLOW = ["01.degree"]


@cache
def before(number: str) -> dict:
    """The names that a notebook has defined before its exercises."""
    names = {"np": np, "foundations": foundations, "Layout": Layout}
    names |= {"step_seconds": steps.step_seconds, "linear_rule": schedules.linear_rule}
    names["square_root_rule"] = schedules.square_root_rule
    if number == "01":  # its exercise uses what earlier cells have computed
        for cell in small_cells(number):
            with redirect_stdout(io.StringIO()):
                exec(compile(cell, number, "exec"), names)
    if number == "07":
        (cell,) = [c for c in Notebook("07").cells("code") if "def ring_allreduce" in c]
        exec(cell.partition("\n")[2], names)
    return names


def small_cells(number: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        read = json.loads(small(Notebook(number).path, Path(folder)).read_text("utf-8"))
    return ["".join(c["source"]) for c in read["cells"] if c["cell_type"] == "code"]


@pytest.mark.thorough(but=[exercise for exercise in EXERCISES if exercise not in SLOW])
@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_folded_solution_is_right_and_the_open_cell_is_no_error(exercise, capsys):
    notebook, names = Notebook(exercise[:2]), before(exercise[:2])
    run(notebook.open_cell(exercise), names)
    one_line(capsys, "not yet: ")
    run(notebook.solution_of(exercise), names)
    one_line(capsys, "correct: ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("degree", "names look like '01.degree'"),
        ("99.degree", "no exercises for '99.degree'"),
        ("06.nothing", "this notebook has 06.average, 06.ranks"),
        ("01._private", "this notebook has"),
        ("01.close", "this notebook has"),
    ],
)
def test_a_notebook_that_asks_for_no_such_exercise_is_wrong(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check(name, 1)


def test_close_and_call():
    close([1, 2 + 1e-9], [1, 2], "w")
    close(1e-9, 0, "w", atol=1e-8)
    with pytest.raises(NotYet, match="w, 3, is too high by 1"):
        close(3, 2, "w")
    with pytest.raises(NotYet, match=r"w is off by up to 0\.5"):
        close([1, 2.5], [1, 2], "w")
    with pytest.raises(NotYet, match=r"w should have shape \(2,\), yours has \(\)"):
        close(1, [1, 2], "w")
    kept = np.ones(2)
    call(lambda array: array.fill(0) or 1, kept)
    assert kept.sum() == 2


def test_a_cell_that_may_fail_is_followed_by_one_that_checks_how():
    """The tag alone would let any error pass, or none."""
    code = [cell for cell in Notebook("08").all if cell["cell_type"] == "code"]
    faults = [
        k for k, cell in enumerate(code) if "raises-exception" in cell["metadata"].get("tags", [])
    ]
    assert len(faults) >= 4
    for k in faults:
        following = "".join(code[k + 1]["source"])
        assert following.startswith("error = sys.last_value\n") and "\nassert " in following
