"""Notebooks are run in kernels of their own and kept with their outputs."""

import json
import os
import shutil

import pytest

from tutorial_dl.cli.notebooks import notebook_files, select
from tutorial_dl.course import executing
from tutorial_dl.figure_style import KEEP, KEPT_FIGURE

FIGURE = """
from tutorial_dl import figure_style
with figure_style.axes() as ax:
    ax.plot([0, 1])
ax.figure
"""


def notebook(file, **cells):
    import nbformat  # every worker collects this file, and one needs it

    whole = nbformat.v4.new_notebook()
    for name, source in cells.items():
        cell = nbformat.v4.new_code_cell(source.strip())
        cell["id"] = name
        whole.cells.append(cell)
    nbformat.write(whole, file)
    return file


def test_outputs_are_kept_until_something_changes(tmp_path):
    source = notebook(tmp_path / "a.ipynb", say="print(6 * 7)", draw=FIGURE)
    result = tmp_path / "out.ipynb"
    executing.execute(source, result)
    say, draw = (cell["outputs"][0] for cell in json.loads(result.read_text())["cells"])
    assert say["text"] in ("42\n", ["42\n"])
    assert {"image/png", KEPT_FIGURE} <= draw["data"].keys()
    assert KEEP not in os.environ
    assert executing.is_current(source, result)
    shutil.copyfile(result, source)
    assert executing.is_current(source, result)  # stored outputs change nothing
    notebook(source, say="print(6 * 8)")
    assert not executing.is_current(source, result)
    assert not executing.is_current(source, tmp_path / "never.ipynb")


@pytest.mark.parametrize(
    "cell, said",
    [
        ("raise ValueError('three\\nlines')", "a.ipynb, cell wrong: ValueError: three"),
        ("import os; os._exit(3)", "a.ipynb, cell wrong: its kernel has ended"),
        ("import time; time.sleep(600)", "a.ipynb, cell wrong: not done in 2 s"),
    ],
    ids=["error", "end", "time"],
)
def test_a_cell_that_fails_is_named_and_nothing_is_written(tmp_path, cell, said):
    source = notebook(tmp_path / "a.ipynb", right="1", wrong=cell)
    with pytest.raises(executing.CellFailed) as error:
        executing.execute(source, tmp_path / "out.ipynb", 2)
    assert str(error.value) == said
    assert not (tmp_path / "out.ipynb").exists()


def test_notebooks_are_chosen_by_number_or_name(capsys):
    allreduce = next(file for file in notebook_files() if file.stem == "05_allreduce")
    for name in ("5", "05", "allreduce", "05_allreduce", "05_allreduce.ipynb"):
        assert select([name]) == [allreduce]
    assert select([]) == notebook_files()
    with pytest.raises(BaseException):  # noqa: B017  (typer's Exit)
        select(["alreduce"])
    assert "there is no notebook 'alreduce'" in capsys.readouterr().err
