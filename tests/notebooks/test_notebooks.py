"""Every notebook runs from top to bottom without a failed assert, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from ended import until
from modules import load_file
from notebook_cells import Notebook
from small_notebooks import SMALL, small

from tutorial_dl.cli.notebooks import notebook_files

NOTEBOOKS = notebook_files()
SECONDS = 600  # a cell
ROOT = Path(__file__).parents[2]


def private_folders(folder: Path) -> dict[str, str]:
    """Variables that give Jupyter and IPython their own folders below `folder`."""
    names = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    for name in names:
        (folder / name).mkdir()
    return {name: str(folder / name) for name in names}


def surroundings(folder: Path) -> dict[str, str]:
    """The environment of a notebook's kernel, without that of a user's own Jupyter."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "JUPYTER_PATH")}
    environment |= private_folders(folder) | {"IPP_NONINTERACTIVE": "1"}
    # More threads would wait for each other, and busily.
    return environment | {"OPENBLAS_NUM_THREADS": "1"}


def run(notebook: Path, folder: Path) -> None:
    """Run the notebook's cells as `notebooks run` does, in a kernel of this Python.

    JUPYTER_DATA_DIR is private, so the kernel "python3" comes from this environment's
    share/jupyter, and not from a user's folder. (A test below checks it.)
    """
    from tutorial_dl.course.executing import execute

    with mock.patch.dict(os.environ, surroundings(folder), clear=True):
        execute(notebook, folder / "out.ipynb", SECONDS)


def write(path: Path, *cells: str) -> Path:
    """Write a notebook with these code cells."""
    import nbformat.v4

    cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
    return path


def test_there_are_notebooks():
    assert SMALL.keys() <= {notebook.stem for notebook in NOTEBOOKS}


def test_make_lab_opens_a_copy_beside_docs_that_git_ignores():
    root = Path(__file__).parents[2]
    done = subprocess.run(["make", "-n", "lab"], cwd=root, capture_output=True, text=True)
    (mine,) = re.findall(r"notebooks copy (\w+)", done.stdout)
    assert "jupyter lab --" in done.stdout and f"preferred_dir={mine} " in done.stdout
    assert f"{mine}/" in (root / ".gitignore").read_text().splitlines()


# Together the notebooks take longer than any other file, so every other one is in a second group.
GROUPS = [
    pytest.param(path, marks=pytest.mark.xdist_group("more_notebooks")) if number % 2 else path
    for number, path in enumerate(NOTEBOOKS)
]


@pytest.mark.thorough(
    but=[
        "01_curve_fitting",
        "03_neural_network",
        "04_ranks_and_messages",
        "06_synchronous_training",
    ]
)
@pytest.mark.parametrize("notebook", GROUPS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook(notebook, tmp_path):
    run(small(notebook, tmp_path), tmp_path)
    record = load_file(ROOT / "notebooks/record.py")
    if stored := record.shape(json.loads(notebook.read_text("utf-8"))):  # also those of a record
        assert record.shape(json.loads((tmp_path / "out.ipynb").read_text("utf-8"))) == stored


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_as_it_should_be(notebook):
    content = json.loads(notebook.read_text())
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    for cell in content["cells"]:
        assert cell.get("execution_count") is None and "execution" not in cell["metadata"]
    identifiers = [cell["id"] for cell in content["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    text = "\n".join("".join(c["source"]) for c in content["cells"] if c["cell_type"] == "markdown")
    for link in re.findall(r"\]\((\.\./[^)#]+)", text):  # also of a copy in `my_notebooks`
        assert (notebook.parent / link).exists(), link
    # Without asserts, running a notebook would check hardly anything.
    code = [c for c in content["cells"] if c["cell_type"] == "code"]
    assert any("assert" in "".join(c["source"]) for c in code)


def test_the_table_of_minutes_is_that_of_the_notebooks():
    """`python notebooks/minutes.py` has been run since a notebook was changed."""
    minutes = load_file(ROOT / "notebooks/minutes.py")
    readme = minutes.README.read_text("utf-8")
    run = {number: int(found) for number, found in minutes.ROW.findall(readme)}
    assert minutes.written(readme, run) == readme, "run: python notebooks/minutes.py"
    assert set(run) == {path.name[:2] for path in NOTEBOOKS} and min(run.values()) > 0
    for path in NOTEBOOKS:
        (said,) = minutes.TIME.findall(path.read_text("utf-8"))
        assert said == f"**Time**: {sum(minutes.minutes(path, run))} minutes", path.name
        cells = {cell["id"]: cell for cell in Notebook(path.name[:2]).all}
        assert len(cells[minutes.ALGORITHM[path.name[:2]]]["source"]) < 60, path.name


def test_the_agendas_of_teaching_are_those_of_the_table():
    """Each row adds up, and two days have each core notebook once, in twelve hours at most."""
    minutes = load_file(ROOT / "notebooks/minutes.py")
    rows = re.findall(
        r"^\| (\d\d) \| (\w+) .* \| (\d+) \| `", minutes.README.read_text("utf-8"), re.M
    )
    of = {number: int(total) for number, _, total in rows} | {"start": 20}
    agendas = (ROOT / "docs/teaching.md").read_text("utf-8").split("| block |")[1:]
    for agenda in agendas:
        row = re.compile(r"^\| [^|]+ \| ((?:start, )?\d\d[\d, ]*) \| (\d+) \|$", re.MULTILINE)
        blocks = row.findall(agenda)
        assert len(blocks) >= 3
        for numbers, said in blocks:
            assert int(said) == sum(of[number] for number in numbers.split(", ")), numbers
    taught = [number for numbers, _ in blocks for number in numbers.split(", ")]
    core = [number for number, kind, _ in rows if kind == "core"]
    assert sorted(taught) == sorted(["start", *core])
    assert sum(of[number] for number in taught) <= 12 * 60


@pytest.mark.parametrize(
    ("cells", "reads", "solves"),
    [
        ([("markdown", "word " * 130)], 1, 0),
        ([("markdown", "a <details> not read </details> b")], 2 / 130, 0),
        ([("code", "x = 1"), ("code", "c.stop()")], 2, 0),
        ([("code", 'ranks = ...\n\ncheck("26.ranks", ranks);')], 0, 6),
        ([("code", "%%px\n# Your model", "mine")], 0, 20),
        ([("code", 'def f():\n    raise NotImplementedError\n\n\ncheck("26.f", f);')], 0, 12),
    ],
)
def test_minutes_are_counted_as_the_table_says(cells, reads, solves):
    minutes = load_file(ROOT / "notebooks/minutes.py")
    cells = [
        {"cell_type": kind, "text": text, "id": (*name, "x")[0]} for kind, text, *name in cells
    ]
    assert minutes.reading(cells) == pytest.approx(reads) and minutes.exercises(cells) == solves


def runs(losses: dict[str, float]) -> list[dict]:
    """What rank 0 holds of trainings with these losses."""
    rows = {"seconds": 1.0, "val_accuracy": 0.95}
    named = {name: [rows | {"val_loss": loss}] for name, loss in losses.items()}
    return [{"runs": {name: SimpleNamespace(epochs=epochs) for name, epochs in named.items()}}]


BUSY = {  # what checks may meet where other programs use the cores
    "08 pace-check": {"c": {"took": [0.9, 1.0, 1.0]}},
    "12 compare": {"c": runs({"downpour": 0.1, "downpour, late": 0.1, "synchronous": 0.2})},
    "14 compare": {
        "c": runs(
            {"synchronous, batch 32": 2, "synchronous, batch 96": 1, "energy matching, κ = 4/3": 4}
        )
    },
}


@pytest.mark.parametrize("check", BUSY)
def test_a_busy_machine_fails_no_check(check, capsys, monkeypatch):
    """Times, and the order in which ranks come, are expected and not asserted."""
    import numpy as np

    from tutorial_dl import measure

    monkeypatch.delenv(measure.QUIET, raising=False)
    number, name = check.split()
    (code,) = ["".join(c["source"]) for c in Notebook(number).all if c["id"] == name]
    shown = SimpleNamespace(on_equal_terms=lambda *_, **__: None)
    exec(code, {"np": np, "measure": measure, "plotting": shown} | BUSY[check])
    assert "expected, but not measured: " in capsys.readouterr().out


# The runner itself -----------------------------------------------------------------------------


def fails(notebook: Path, folder: Path) -> str:
    """What is said of a notebook that must fail."""
    from tutorial_dl.course.executing import CellFailed

    with pytest.raises(CellFailed) as error:
        run(notebook, folder)
    return str(error.value)


def test_a_failed_assert_fails_and_the_kernel_is_ours(tmp_path, monkeypatch):
    """Not that of the user's folder, even if it has the same name."""
    theirs = tmp_path / "theirs" / "kernels" / "python3"
    theirs.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Theirs", "language": "python", "env": {"THEIRS": "1"}}
    (theirs / "kernel.json").write_text(json.dumps(spec))
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_PATH"):
        monkeypatch.setenv(name, str(tmp_path / "theirs"))
    ours = (
        f"import os, sys; assert sys.prefix == {sys.prefix!r}, 'another prefix'; x = 1\n"
        "assert 'THEIRS' not in os.environ, 'another kernel'"
    )
    said = fails(write(tmp_path / "wrong.ipynb", ours, "assert x == 2, 'it is one'"), tmp_path)
    assert ": it is one" in said and "another" not in said


CLUSTER = "from tutorial_dl import cluster; c = cluster.start(n=2)"
KILLED = """
import sys
from pathlib import Path
from modules import load_file
load_file(sys.argv[1]).run(*map(Path, sys.argv[2:]))
"""


@pytest.mark.thorough
def test_a_cluster_that_is_never_stopped_ends_with_its_notebook(tmp_path):
    """This also holds if the notebook is killed; `nothing_left` in conftest.py checks it."""
    world = "%%px\nfrom mpi4py import MPI\nassert MPI.COMM_WORLD.size == 2"
    run(write(tmp_path / "open.ipynb", CLUSTER, world), tmp_path)

    again, support = tmp_path / "again", Path(__file__).parents[1] / "support"
    again.mkdir()
    hangs = "import pathlib, time; pathlib.Path('reached').touch(); time.sleep(300)"
    notebook = write(again / "hangs.ipynb", CLUSTER, world, hangs)
    path = os.pathsep.join([str(support), os.environ["PYTHONPATH"]])
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, __file__, str(notebook), str(again)],
        env=os.environ | {"PYTHONPATH": path},
    )
    until(lambda: (again / "reached").exists() or process.poll() is not None)
    process.kill()  # its kernel and its cluster end with it
    assert process.wait() == -signal.SIGKILL


@pytest.mark.thorough
def test_an_error_on_an_engine_fails_the_notebook(tmp_path):
    cells = CLUSTER, "%%px\nassert 1 == 2, 'not on any rank'", "c.stop()"
    assert "not on any rank" in fails(write(tmp_path / "engine.ipynb", *cells), tmp_path)


@pytest.mark.thorough
def test_nbval_runs_a_notebook_too(tmp_path):
    """As instructors who have nbval do: pytest --nbval-lax notebooks."""
    (tmp_path / "home").mkdir()
    words = ("--nbval-lax", "-q", "-pno:cacheprovider", "-c", os.devnull, "--rootdir", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, words), str(NOTEBOOKS[0])],
        capture_output=True, text=True, timeout=SECONDS, env=surroundings(tmp_path / "home"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert "passed" in done.stdout and "failed" not in done.stdout
