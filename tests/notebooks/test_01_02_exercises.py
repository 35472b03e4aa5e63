"""Exercises of notebooks 01 and 02: folded solutions pass.

The notebooks' cells are run as plain Python with the exercises undone, as by a learner who skips
them.
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
from exercise_cells import one_line
from notebook_cells import Notebook
from small_notebooks import small

from tutorial_dl.course import exercises
from tutorial_dl.course.exercises import NotYet, call, check, close

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FILES = {"01": "01_curve_fitting.ipynb", "02": "02_gradient_descent.ipynb"}
EXERCISES = ("01.degree", "01.ridge", "02.rate", "02.descent")


@cache
def cells(notebook):
    with tempfile.TemporaryDirectory() as folder:
        read = json.loads(small(NOTEBOOKS / FILES[notebook], Path(folder)).read_text("utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in read["cells"]]


@cache
def run(notebook):
    """Run the notebook's cells in order; returns the names that they define and their output."""
    names, said = {}, io.StringIO()
    with redirect_stdout(said):
        for kind, source in cells(notebook):
            if kind == "code":
                exec(compile(source, FILES[notebook], "exec"), names)
    return names, said.getvalue()


@pytest.mark.thorough(but=["01.ridge", "02.descent"])
@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_folded_solution_is_correct(exercise, capsys):
    code = Notebook(exercise[:2]).solution_of(exercise)
    names = dict(run(exercise[:2])[0])
    exec(compile(code, exercise, "exec"), names)
    one_line(capsys, "correct: ")


@pytest.mark.parametrize("notebook", FILES)
def test_a_notebook_runs_through_with_its_exercises_undone(notebook):
    mine = [exercise for exercise in EXERCISES if exercise.startswith(notebook)]
    assert run(notebook)[1].count("not yet: ") == len(mine)
    asked = re.findall(r'check\("([^"]+)"', "".join(s for k, s in cells(notebook) if k == "code"))
    assert asked == mine


def test_the_rate_is_right_to_one_per_cent():
    right = 2 / np.linalg.eigvalsh(run("02")[0]["rescaled"].hessian())[-1]
    assert check("02.rate", 1.009 * right) and check("02.rate", np.float32(right))
    assert not check("02.rate", 1.011 * right) and not check("02.rate", 0.98 * right)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("degree", "names look like '01.degree'"),
        ("99.degree", "no exercises for '99.degree'"),
        ("01.nothing", "this notebook has 01.degree, 01.ridge"),
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


@pytest.mark.parametrize("file", FILES.values())
def test_notebooks_are_stored_without_outputs_and_with_stable_cells(file):
    notebook = json.loads((NOTEBOOKS / file).read_text(encoding="utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))


def test_judges_of_a_file_are_its_exercises():
    for notebook in FILES:
        module = __import__(f"tutorial_dl.course.exercises.notebook_{notebook}", fromlist=["x"])
        mine = {exercise[3:] for exercise in EXERCISES if exercise.startswith(notebook)}
        assert set(exercises._judges(module)) == mine
