"""Engines of this machine are forked from one process, with TensorFlow where cells will use it."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import types
from pathlib import Path

import psutil
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from numba_kernels import launch
from tutorial_dl import cluster
from tutorial_dl.cluster import foreseen, processes, when_there

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
        ("%%px\nimport numpy as np, keras", True),
        ("%%writefile my_file.py\nimport keras", True),
        ("%%writefile my_file.py\nimport numpy", False),
        ("%%writefile notes.txt\nimport keras", False),
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
        ('%%px\nimport os\nos.environ["KERAS_BACKEND"] = "jax"\nimport keras', False),
        ("%%px\n%env TF_ENABLE_ONEDNN_OPTS=0\nimport tensorflow", False),
        ('%%px\nimport keras, os\nos.environ["MINE"] = "1"', True),
    ],
)
def test_cells_that_import_tensorflow_are_foreseen(cell, answer, tmp_path):
    assert foreseen.tensorflow(notebook(tmp_path / "a.ipynb", "x = 1", cell)) is answer
    assert not foreseen.tensorflow(notebook(tmp_path / "b.ipynb", cell, kind="markdown"))


MINE = "import keras\n\n\ndef build(): ..."


@pytest.mark.parametrize(
    "cell, files, answer",
    [
        ("%%px\nimport my_file", {"my_file.py": MINE}, True),
        ("%%px\nimport numpy as np, my_file as mine", {"my_file.py": MINE}, True),
        (
            "%%px\nfrom my_file import build",
            {"my_file.py": "from .nets import *", "nets.py": MINE},
            True,
        ),
        ("%%px\nfrom nets.wide import build", {"nets/wide.py": MINE}, True),
        ("%%px\nimport nets", {"nets/__init__.py": MINE}, True),
        ("%%px\nimport a", {"a.py": "import b", "b.py": "import a\nimport keras"}, True),
        ("%%px\nimport a", {"a.py": "import b", "b.py": "import a"}, False),
        ("import my_file", {"my_file.py": MINE}, False),  # in the notebook alone
        ("%%px\nimport my_file", {"other.py": MINE}, False),
        (
            "%%px\nimport my_file",
            {"my_file.py": f'environ["KERAS_BACKEND"] = "jax"\n{MINE}'},
            False,
        ),
    ],
)
def test_files_that_cells_import_are_read(cell, files, answer, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = notebook(tmp_path / "a.ipynb", "x = 1", cell)
    assert foreseen.tensorflow(found, folder=tmp_path) is answer
    assert foreseen.tensorflow(None, [cell], tmp_path) is answer


def test_cells_count_that_have_been_run_and_not_saved(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    quiet = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell(config=quiet, user_module=types.ModuleType("of_the_notebook"))
    monkeypatch.setattr(foreseen, "_shell", lambda: shell)
    shell.run_cell("x = 1", store_history=True)
    assert not foreseen.tensorflow(foreseen.this_notebook(), foreseen.cells_run())
    shell.run_cell("%%writefile my_file.py\nimport keras", store_history=True)
    assert (tmp_path / "my_file.py").exists()
    assert foreseen.tensorflow(foreseen.this_notebook(), foreseen.cells_run())


def test_a_file_that_is_no_text_is_passed_over(tmp_path):
    (tmp_path / "my_file.py").write_bytes(b"\xff\xfeimport keras")
    assert not foreseen.tensorflow(None, ["%%px\nimport my_file"], tmp_path)


def test_without_a_notebook_that_can_be_read_nothing_is_foreseen(tmp_path):
    (tmp_path / "list.ipynb").write_text("[]")
    (tmp_path / "half.ipynb").write_text('{"cells": [')
    (tmp_path / "cells.ipynb").write_text('{"cells": [1]}')
    for each in (None, "", str(tmp_path / "none.ipynb"), *map(str, tmp_path.glob("*.ipynb"))):
        assert not foreseen.tensorflow(each)


def test_a_command_begins_when_its_file_has_been_written(tmp_path, monkeypatch):
    file, waits, begun = tmp_path / "file", [], []

    def sleep(seconds):
        waits.append(file.exists())
        if len(waits) == 3:
            file.touch()
        if len(waits) == 5:
            file.write_text("{}")

    monkeypatch.setattr(when_there.time, "sleep", sleep)
    monkeypatch.setattr(when_there.os, "execvp", lambda *words: begun.append((len(waits), words)))
    monkeypatch.setattr(sys, "argv", ["", str(file), "run", "it"])
    when_there.main()
    assert begun == [(5, ("run", ["run", "it"]))] and waits == [False] * 3 + [True] * 2


def test_a_start_that_fails_leaves_no_folder_and_names_the_controller(tmp_path, monkeypatch):
    """The controller ends before its engines are started, and its guard removes the folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    controller = [sys.executable, "-c", "raise SystemExit('no controller today')"]
    monkeypatch.setattr(processes, "controller", lambda *_: controller)
    made = processes.engines_here

    def later(n, run, profile):
        found = made(n, run, profile)
        while run.exists():
            time.sleep(0.01)
        return found

    monkeypatch.setattr(processes, "engines_here", later)
    with pytest.raises(cluster.ClusterError, match="the controller ended at once"):
        cluster.start(n=2, timeout=SECONDS)
    assert not list(tmp_path.glob("fork-*"))


def test_a_controller_that_hangs_is_named_with_its_log(monkeypatch):
    waits = "print('I am stuck', flush=True); import time; time.sleep(600)"
    monkeypatch.setattr(processes, "controller", lambda *_: [sys.executable, "-c", waits])
    with pytest.raises(cluster.ClusterError, match=r"the controller did not (.|\n)*I am stuck"):
        cluster.start(n=2, timeout=3)


@pytest.mark.thorough
def test_engines_are_forked_with_what_their_cells_will_import(tmp_path, monkeypatch):
    if launch.is_open_mpi():
        pytest.skip("ranks of Open MPI are not forked")
    (tmp_path / "my_file.py").write_text("import keras")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(foreseen.NOTEBOOK, notebook(tmp_path / "a.ipynb", "%%px\nimport my_file"))
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


@pytest.mark.thorough
def test_a_restart_does_not_use_what_a_killed_controller_has_left():
    with cluster.start(n=1, timeout=SECONDS) as c:
        guard = psutil.Process(int(c._record.controller[0]))
        killed = [guard, *guard.children(recursive=True)]
        for each in killed:  # the guard first: it can't remove the connection files
            each.kill()
        psutil.wait_procs(killed, SECONDS)
        assert processes.connection_file(c._record.run, "client").exists()
        c.restart()
        c.run("x = 1")
        assert c["x"] == [1]
