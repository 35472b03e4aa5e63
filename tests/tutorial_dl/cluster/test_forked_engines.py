"""Engines of this machine are forked from one process, with TensorFlow where cells will use it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from numba_kernels import launch
from tutorial_dl import cluster
from tutorial_dl.cluster import foreseen, when_there

SECONDS = 300
pytestmark = pytest.mark.usefixtures("private")


def notebook(file: Path, *cells: str, kind: str = "code") -> str:
    found = [{"cell_type": kind, "source": [cell]} for cell in cells]
    file.write_text(json.dumps({"cells": found}))
    return str(file)


@pytest.mark.parametrize(
    "cell, answer",
    [
        ("%%px\nimport keras", True),
        ("%%px --targets 0\nfrom keras import layers", True),
        ("%%mpi\nif rank < 2:\n    import tensorflow as tf", True),
        ("%%px\nfrom tutorial_dl.replica import DenseReplica, KerasReplica", True),
        ("%%px\nfrom tutorial_dl.layers import convert", True),
        ("%px import keras", False),  # the import is no line of its own: it comes when it comes
        ("import keras", False),  # in the notebook itself
        ("%%px\nimport numpy", False),
        ("%%px\n# import keras", False),
        ("%%px\nfrom tutorial_dl.replica import DenseReplica", False),
        ("%%px\nimport keras_tuner", False),
    ],
)
def test_cells_that_import_tensorflow_are_foreseen(cell, answer, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k != "tensorflow"})
    assert foreseen.tensorflow(notebook(tmp_path / "a.ipynb", "x = 1", cell)) is answer
    assert not foreseen.tensorflow(notebook(tmp_path / "b.ipynb", cell, kind="markdown"))


def test_without_a_notebook_that_can_be_read_nothing_is_foreseen(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k != "tensorflow"})
    (tmp_path / "list.ipynb").write_text("[]")
    (tmp_path / "half.ipynb").write_text('{"cells": [')
    (tmp_path / "cells.ipynb").write_text('{"cells": [1]}')
    for each in (None, "", str(tmp_path / "none.ipynb"), *map(str, tmp_path.glob("*.ipynb"))):
        assert not foreseen.tensorflow(each)
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    assert foreseen.tensorflow(None)  # the kernel has imported it


def test_a_command_begins_when_its_file_is_there(tmp_path):
    file, said = tmp_path / "file", tmp_path / "said"
    code = f"import os; open({str(said)!r}, 'w').write(str(os.path.exists({str(file)!r})))"
    words = [sys.executable, "-I", "-S", when_there.__file__, str(file), sys.executable, "-c", code]
    with subprocess.Popen(words) as process:
        while Path(f"/proc/{process.pid}/cmdline").read_bytes().count(b"when_there") == 0:
            pass
        assert not said.exists()
        file.touch()
        assert process.wait(SECONDS) == 0
    assert said.read_text() == "True"


def test_a_file_that_never_comes_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(when_there, "PATIENCE", 0.05)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "never"), "true"])
    with pytest.raises(SystemExit, match=r"never was not written within 0.05 s"):
        when_there.main()


def test_engines_are_forked_with_what_their_cells_will_import(tmp_path, monkeypatch):
    if launch.is_open_mpi():
        pytest.skip("ranks of Open MPI are not forked")
    monkeypatch.setenv(foreseen.NOTEBOOK, notebook(tmp_path / "a.ipynb", "%%px\nimport keras"))
    with cluster.start(n=2, timeout=SECONDS) as c:
        engines = [psutil.Process(each.pid) for each in c.status()]
        (server,) = {each.parent() for each in engines}
        assert "tutorial_dl.cluster.engine_loaded_keras" in server.cmdline()
        folder = Path(server.cmdline()[4])
        assert folder.stat().st_mode & 0o777 == 0o700
        assert c["'keras' in __import__('sys').modules"] == [True] * 2
        c.run("from mpi4py import MPI\nimport keras, numpy as np")
        c.run("x = float(keras.ops.sum(np.ones(MPI.COMM_WORLD.rank + 1)))")
        assert c["x"] == [1.0, 2.0]
        c.restart()
        again = [psutil.Process(each.pid) for each in c.status()]
        assert not any(each.is_running() for each in [*engines, server]) and len(again) == 2
        assert not folder.exists()
        folder = Path(again[0].parent().cmdline()[4])
        processes = [*again, again[0].parent()]
    assert not folder.exists() and not any(each.is_running() for each in processes)
