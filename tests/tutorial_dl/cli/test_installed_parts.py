"""What an installation has: the notebooks, and one line where an optional package is missing."""

import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
from commands_here import run_command

from tutorial_dl.cli import notebooks
from tutorial_dl.extras import missing

NOTEBOOKS = notebooks.notebook_files()


def test_notebooks_are_listed_and_copied(tmp_path):
    assert run_command("notebooks", "list").stdout.split() == [file.name for file in NOTEBOOKS]
    mine = tmp_path / "course" / "mine"
    done = run_command("notebooks", "copy", str(mine))
    assert done.stdout == f"{mine}: copied {len(NOTEBOOKS)} notebooks\n"
    for file in NOTEBOOKS:
        assert (mine / file.name).read_bytes() == file.read_bytes()
    changed = mine / NOTEBOOKS[2].name
    changed.write_text("mine")
    (mine / NOTEBOOKS[4].name).unlink()
    again = run_command("notebooks", "copy", str(mine))
    kept = f"kept {len(NOTEBOOKS) - 1} as they are there (--force replaces them)"
    assert again.stdout == f"{mine}: copied 1 notebook; {kept}\n"
    assert changed.read_text() == "mine" and (mine / NOTEBOOKS[4].name).exists()
    assert run_command("notebooks", "copy", str(mine), "--force").returncode == 0
    assert changed.read_bytes() == NOTEBOOKS[2].read_bytes()


@pytest.mark.parametrize("installed", [False, True])
def test_a_notebook_of_ones_own_is_none_of_the_course(tmp_path, monkeypatch, installed):
    """JupyterLab puts Untitled.ipynb and copies beside those of the course."""
    top = tmp_path / "share/tutorial-dl" if installed else tmp_path
    (top / "notebooks").mkdir(parents=True)
    for name in ("01_one", "02_two", "Untitled", "01_one-Copy1", "03_mine"):
        (top / f"notebooks/{name}.ipynb").write_text("{}")
    rows = "| [01 One](01_one.ipynb) | one |\n| [02 Two](02_two.ipynb) | two |\n"
    (top / "notebooks/README.md").write_text(rows)
    listed = metadata.PackagePath("../../share/tutorial-dl/notebooks/README.md")
    listed.dist = SimpleNamespace(locate_file=(tmp_path / "lib/python").joinpath)
    monkeypatch.setattr(notebooks.metadata, "files", lambda _: [listed])
    monkeypatch.setattr(notebooks, "__file__", str(tmp_path / "tutorial_dl/cli/notebooks.py"))
    course = [top / "notebooks/01_one.ipynb", top / "notebooks/02_two.ipynb"]
    assert notebooks.notebook_files() == course and notebooks.select(["1", "two"]) == course
    (top / "notebooks/README.md").unlink()
    assert notebooks.notebook_files() == []


HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from tutorial_dl.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("typer", ["--version"], None),
        (
            "matplotlib",
            ["layout", "--masters", "1", "--workers", "2", "--figure", "l.png"],
            "notebooks",
        ),
        ("ipyparallel", ["cluster", "start", "-n", "2"], "notebooks"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, module, words, extra):
    monkeypatch.chdir(tmp_path)
    line = [sys.executable, "-c", HIDDEN.format(name=module), *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    if extra is None:  # it is always installed: then it is no matter of extras
        assert done.returncode == 1 and done.stderr.count("\n") > 1
        return
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert f'not installed: pip install "tutorial-dl[{extra}]"' in done.stderr


def test_other_imports_are_not_blamed_on_an_extra():
    assert missing(ModuleNotFoundError("No module named 'keras.old'", name="keras.old")) is None
    assert missing(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
    assert missing(ValueError("keras")) is None
    line = missing(ModuleNotFoundError("No module named 'sklearn'", name="sklearn"))
    assert (
        line
        == 'this needs scikit-learn, which is not installed: pip install "tutorial-dl[notebooks]"'
    )
