"""A training longer than its job: Slurm warns, the job is put back, and the next one goes on."""

from __future__ import annotations

import json

from ended import until
from slow_training import MODEL, arrays, assert_same_bits
from test_clusters import SUBMIT

OPTIONS = (
    "--model", "slow.py:build", "--optimizer", "adam", "--batch-size", "40", "--epochs", "80",
    "--checkpoint",
)  # fmt: skip


def test_it_ends_with_the_bits_of_a_run_without_a_limit(slurm):
    """The limit is 4 minutes, the warning comes 2 before (a minute earlier at most)."""
    (slurm.home / "slow.py").write_text(MODEL)
    whole = ["python", "-m", "tutorial_dl", "train", "-n", "2", *OPTIONS, "whole", "--quiet"]
    done = slurm.run(whole, env={"SLOW": "0"})
    assert done.returncode == 0, done.stderr
    text = SUBMIT.replace("00:05:00", "00:04:00") + 'setup = ["export SLOW=0.05"]\n'
    (slurm.home / "site.toml").write_text(text)
    words = ["--json", "result.json", "--profile", "site.toml", "--submit"]
    done = slurm.run(["python", "-m", "tutorial_dl", "job", "train", *OPTIONS, "run", "-n", "2",
                      "--checkpoint-every", "100", *words])  # fmt: skip
    assert done.returncode == 0, done.stderr
    job, log = done.stdout.strip(), slurm.home / "run.log"

    def told(words: str) -> bool:
        return log.exists() and words in log.read_text()

    until(lambda: told("is put back into the queue"))
    assert "; run/step_" in log.read_text() and " left of the job" in log.read_text()
    # Slurm starts such a job two minutes later; here, at once.
    again = ["scontrol", "update", f"jobid={job}", "starttime=now"]
    until(lambda: slurm.root(again).returncode == 0)
    until((slurm.home / "result.json").exists)
    assert told("going on from step"), log.read_text()
    assert len(json.loads((slurm.home / "result.json").read_text())["history"]) == 80
    assert_same_bits(arrays(slurm.home / "run"), arrays(slurm.home / "whole"))
