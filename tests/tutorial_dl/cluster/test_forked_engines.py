"""Engines of this machine are forked from one process, with what their profile names."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from numba_kernels import launch
from tutorial_dl import cluster
from tutorial_dl.cluster import processes

SECONDS = 300
pytestmark = pytest.mark.usefixtures("private")


def test_a_command_begins_when_its_file_has_been_written(tmp_path):
    file = tmp_path / "a file"
    command = ["sh", "-c", processes.WHEN_WRITTEN, str(file), "cat", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        file.touch()
        with pytest.raises(subprocess.TimeoutExpired):  # it is empty
            process.wait(0.2)
        file.write_text("{}")
        assert process.communicate(timeout=SECONDS) == ("{}", None)


def test_a_start_that_fails_leaves_no_folder_and_names_the_controller(tmp_path, monkeypatch):
    """The controller ends before its engines are started, and its guard removes the folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    controller = [sys.executable, "-c", "raise SystemExit('no controller today')"]
    monkeypatch.setattr(processes, "controller", lambda *_: controller)
    made = processes.engines_here

    def later(record, profile):
        found = made(record, profile)
        while record.run.exists():
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
def test_engines_are_forked_with_what_their_profile_names():
    if launch.is_open_mpi():
        pytest.skip("ranks of Open MPI are not forked")
    with cluster.start(n=2, timeout=SECONDS, profile="keras") as c:
        engines = [psutil.Process(each.pid) for each in c.status()]
        (server,) = {each.parent() for each in engines}
        assert "tutorial_dl.cluster.preload" in server.cmdline()
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
        assert c._record.connection_file("client").exists()
        c.restart()
        c.run("x = 1")
        assert c["x"] == [1]
