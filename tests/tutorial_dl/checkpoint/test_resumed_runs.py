"""Runs that are killed, stopped and resumed from the command line; wrong options."""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
from ended import wait_for
from slow_training import arrays, assert_same_bits, steps_in

from tutorial_dl.config import RunConfig, read
from tutorial_dl.runtime.termination import WARNINGS, heeding

TRAIN = (
    "-m", "tutorial_dl", "train", "--model", "dense", "--epochs", "6", "--batch-size", "40",
    "--quiet", "--optimizer", "adam", "--schedule", "cosine", "--checkpoint-every", "3",
)  # fmt: skip


def start(folder, *words, ranks=2):
    command = [sys.executable, *TRAIN, "-n", str(ranks), "--checkpoint", str(folder), *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ranks_of(process) -> list[psutil.Process]:
    """The processes that train, below `process`."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            words = child.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if "tutorial_dl" in words and "guard.py" not in " ".join(words) and "-n" not in words:
            found.append(child)
    return found


def result(process) -> dict:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return json.loads(out)


def kill(process) -> None:
    """Kill all ranks; `process.returncode` is 0 if the run had ended before."""
    ended = process.poll() is not None
    for rank in () if ended else ranks_of(process):
        with suppress(psutil.NoSuchProcess):
            rank.kill()
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0 or (process.returncode == 1 and not ended), err


@pytest.mark.thorough
def test_killed_and_resumed(tmp_path):
    """All ranks are killed at a random moment and resumed; the result is that of one whole run."""
    killed_again_and_again(tmp_path, 1)


def killed_again_and_again(tmp_path, times):
    """Kill and resume runs until there were `times` kills; returns the number of runs.

    If a run ends before it is killed again, the next one begins.
    """
    whole = result(start(tmp_path / "whole", "--json", "-"))
    expected = arrays(tmp_path / "whole")
    assert steps_in(tmp_path / "whole")[-1] == 6 * 36
    killed, run, random = 0, 0, np.random.default_rng(int(time.time()))
    folder = tmp_path / "0"
    while killed < times:
        before = steps_in(folder)
        process = start(folder, "--resume")
        try:
            end = time.monotonic() + 600
            while steps_in(folder)[-1:] == before[-1:] and process.poll() is None:
                assert time.monotonic() < end
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.02))  # a random moment
        finally:
            kill(process)
        killed += process.returncode == 1
        if process.returncode == 0 or killed == times:
            done = result(start(folder, "--resume", "--json", "-"))
            assert_same_bits(arrays(folder), expected)
            for name in ("val_loss", "val_accuracy", "loss"):
                assert done[name] == whole[name]
            run += 1
            folder = tmp_path / str(run)
        assert run <= 20, "too quick to be killed"
    return run


@pytest.mark.thorough(but="SIGUSR1")
@pytest.mark.parametrize("warning", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_a_warning_writes_one_and_ends(warning, tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--epochs", "100000", "--checkpoint-every", "1000000")
    wait_for(lambda: steps_in(folder), process)
    before = steps_in(folder)[-1]
    process.send_signal(signal.Signals[warning])
    _, err = process.communicate(timeout=600)
    assert process.returncode == 75  # EX_TEMPFAIL, "try again"
    last = steps_in(folder)[-1]
    assert last >= before and err.count("\n") == 1
    assert f"ended by a signal after step {last}; {folder}" in err
    done = result(start(folder, "--resume", "--target", "val_loss=100", "--json", "-"))
    assert done["stopped"] == f"val_loss {done['val_loss']:.4g} has reached 100"
    assert done["history"][-1]["epoch"] == last // 36 + 1


@pytest.mark.thorough
def test_stopped_runs(tmp_path):
    """A run that met its target stops again when resumed with it, and trains on without it."""
    folder = tmp_path / "run"
    words = ("--target", "val_loss=100", "--json", "-")
    first = result(start(folder, *words, ranks=1))
    assert len(first["history"]) == 1
    # The folder of checkpoints has the options of the run, in a file for --config.
    assert RunConfig.of(**read(folder / "run.toml")).tables() == first["config"]
    again = start(folder, "--resume", *words, ranks=1)
    out, err = again.communicate(timeout=600)
    assert json.loads(out)["history"] == first["history"]
    assert "the run was stopped before: val_loss" in err and "nothing is left to train" in err
    further = result(start(folder, "--resume", "--json", "-", ranks=1))
    assert len(further["history"]) == 6
    _, err = start(folder, "--resume", ranks=1).communicate(timeout=600)
    assert err == "6 epochs are done; nothing is left to train of --epochs 6\n"
    wrong = start(tmp_path / "other", "--target", "val_acc=0.9", ranks=1)
    out, err = wrong.communicate(timeout=600)
    assert wrong.returncode == 2 and err.count("\n") == 1 and "there is no 'val_acc'; one of" in err


@pytest.mark.parametrize("number", WARNINGS)
def test_a_signal_that_comes_too_late_is_not_lost(number):
    told = []
    before = signal.signal(number, lambda *_: told.append("outside"))
    try:
        with heeding(*WARNINGS) as seen:
            signal.raise_signal(number)
            assert seen == [number] and not told
        assert told == ["outside"]
    finally:
        signal.signal(number, before)
