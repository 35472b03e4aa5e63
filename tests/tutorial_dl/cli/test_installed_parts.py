"""What an installation has: the notebooks, and one line where an optional package is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands_here import run_command

from tutorial_dl.extras import missing

NOTEBOOKS = sorted(Path(__file__).parents[3].glob("notebooks/*.ipynb"))


def test_notebooks_are_listed_and_copied(tmp_path):
    assert run_command("notebooks", "list").stdout.split() == [file.name for file in NOTEBOOKS]
    mine = tmp_path / "course" / "mine"
    done = run_command("notebooks", "copy", str(mine))
    assert done.stdout == f"{len(NOTEBOOKS)} notebooks in {mine}: jupyter lab {mine}\n"
    for file in NOTEBOOKS:
        assert (mine / file.name).read_bytes() == file.read_bytes()
    changed = mine / NOTEBOOKS[2].name
    changed.write_text("mine")
    again = run_command("notebooks", "copy", str(mine))
    assert again.returncode == 2 and again.stderr.count("\n") == 1
    assert f"{mine / NOTEBOOKS[0].name} exists; --force replaces it" in again.stderr
    assert changed.read_text() == "mine"
    assert run_command("notebooks", "copy", str(mine), "--force").returncode == 0
    assert changed.read_bytes() == NOTEBOOKS[2].read_bytes()


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
