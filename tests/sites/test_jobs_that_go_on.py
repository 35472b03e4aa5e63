"""A training longer than its job: Slurm warns, the job is put back, and the next one goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from test_clusters import SUBMIT

# A step takes 50 ms, so that the run is longer than its job; not where SLOW is empty.
MODEL = """
import os, time
from tutorial_dl.replica import DenseReplica

def build():
    replica = DenseReplica((64, 16, 10), "relu", "cross_entropy", seed=0)
    right = replica.compute_gradient

    def slowly(*arguments, **more):
        time.sleep(0.05 if os.environ["SLOW"] else 0)
        return right(*arguments, **more)

    replica.compute_gradient = slowly
    return replica
"""
OPTIONS = [
    "--model",
    "slow.py:build",
    "--optimizer",
    "adam",
    "--batch-size",
    "40",
    "--epochs",
    "80",
    "--checkpoint",
]
SECONDS = 400


def until(ready, what: str):
    end = time.monotonic() + SECONDS
    while not (found := ready()):
        assert time.monotonic() < end, what
        time.sleep(0.2)
    return found


def arrays(folder: Path) -> dict:
    """All arrays of the newest checkpoint."""
    found = {}
    for path in max(folder.glob("step_*")).glob("*.npz"):
        with np.load(path) as file:
            found |= {(path.name, name): file[name] for name in file.files}
    return found


def test_it_ends_with_the_bits_of_a_run_without_a_limit(slurm):
    """The limit is 4 minutes, the warning comes 2 before (a minute earlier at most)."""
    (slurm.home / "slow.py").write_text(MODEL)
    whole = ["python", "-m", "tutorial_dl", "train", "-n", "2", *OPTIONS, "whole", "--quiet"]
    done = slurm.run(whole, env={"SLOW": ""}, seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    text = SUBMIT.replace("00:05:00", "00:04:00") + 'setup = ["export SLOW=1"]\n'
    (slurm.home / "site.toml").write_text(text)
    words = ["--json", "result.json", "--profile", "site.toml", "--submit"]
    done = slurm.run(["python", "-m", "tutorial_dl", "job", "train", *OPTIONS, "run", "-n", "2",
                      "--checkpoint-every", "100", *words])  # fmt: skip
    assert done.returncode == 0, done.stderr
    job, log = done.stdout.strip(), slurm.home / "run.log"

    def told(words: str) -> bool:
        return log.exists() and words in log.read_text()

    until(lambda: told("is put back into the queue"), "no warning came")
    assert "; run/step_" in log.read_text() and " left of the job" in log.read_text()
    # Slurm starts such a job two minutes later; here, at once.
    again = ["scontrol", "update", f"jobid={job}", "starttime=now"]
    until(lambda: slurm.root(again).returncode == 0, "the job can't be started")
    until((slurm.home / "result.json").exists, "the second job has no result")
    assert told("going on from step"), log.read_text()
    assert len(json.loads((slurm.home / "result.json").read_text())["history"]) == 80
    ours, theirs = arrays(slurm.home / "run"), arrays(slurm.home / "whole")
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=str(name))
