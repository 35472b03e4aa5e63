"""Turns at compiling: a wait ends whatever happens to the process that compiles."""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from numba_kernels.jit import turns

HOLDER = """
import sys, time
from pathlib import Path
from numba_kernels.jit import turns
turns.take(Path(sys.argv[1]))
print("taken", flush=True)
time.sleep(100)
"""


def test_a_process_waits_until_the_one_that_compiles_ends(tmp_path, monkeypatch):
    file = tmp_path / "kernel"
    monkeypatch.setattr(turns, "in_vain", False)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"taken\n"
        began = time.monotonic()  # asserts that it waits, not for how long
        threading.Timer(0.5, file.touch).start()
        assert turns.take(file) is None  # the other process has compiled it
        assert time.monotonic() - began > 0.4
        file.unlink()
        monkeypatch.setattr(turns, "PATIENCE", 0.3)
        assert turns.take(file) is None  # the other process is stopped or very slow
        assert turns.in_vain and turns.take(file) is None  # it does not wait a second time
        monkeypatch.setattr(turns, "PATIENCE", 30.0)
        monkeypatch.setattr(turns, "in_vain", False)
        threading.Timer(0.3, holder.kill).start()
        mine = turns.take(file)
        assert mine is not None and holder.wait(100)
        turns.give(mine)
        assert not list(tmp_path.iterdir())
    finally:
        holder.kill()
        holder.wait()


def test_without_locks_everybody_compiles(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(turns.fcntl, "flock", flock)
    assert turns.take(tmp_path / "kernel") is None and not list(tmp_path.iterdir())


def test_a_turn_whose_folder_has_gone_is_given_back(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    turn = turns.take(folder / "kernel")
    shutil.rmtree(folder)
    folder.touch()
    turns.give(turn)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(turn.descriptor)
