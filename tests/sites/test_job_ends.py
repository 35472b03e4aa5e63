"""A job that ends elsewhere: its running cell and the next one say within seconds what happened."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time

import pytest
from test_clusters import BEGIN, SUBMIT

SCRIPT = """
c = cluster.start(n=4, profile="site.toml")
c.run(WORLD)
job = c.job.number
say(job=job, up=True)
for cell in ("import time\\nfor _ in range(3000): time.sleep(0.1)", "print(1)"):
    try:
        c.run(cell)
    except CellError as error:
        head = c.job.log.with_suffix(".head")
        say(**{cell[:6]: [time.time(), error.summary, head.stat().st_mtime]})
if sys.argv[1:]:  # as the error offers
    c.restart()
    c.run(WORLD)
    assert c.job.number != job
c.stop()
"""
TWO_NODES = SUBMIT + "nodes = 2\n"


@pytest.fixture
def ends(slurm):
    """ends(what, profile) -> (seconds, summary of the running cell) after `what(job)` is called."""

    def run(
        what, profile: str = SUBMIT + "nodes = 2\n", restart: bool = False
    ) -> tuple[float, list[str]]:
        (slurm.home / "site.toml").write_text(profile)
        process = slurm.popen(
            ["python", "-c", BEGIN + SCRIPT, *["restart"] * restart],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        values: dict = {}
        timer = threading.Timer(240, process.kill)
        timer.start()
        with process:
            for line in process.stdout:
                if line.startswith("{"):
                    values.update(json.loads(line))
                    if len(values) == 2:
                        time.sleep(1.0)  # the cell runs by now
                        began = what(values["job"])
            error = process.stderr.read()
        timer.cancel()
        assert process.returncode == 0, error
        assert len(values) == 4, f"{values}\n{error}"
        (at, summary, log), (_, after, _) = values["import"], values["print("]
        assert summary == after, "the next cell says something else"
        return at - (log if began is None else began), summary

    return run


def now(done: subprocess.CompletedProcess) -> float:
    assert done.returncode == 0, done.stderr
    return time.time()


def test_cancelled_by_root(ends, slurm, bound):
    seconds, [line] = ends(lambda job: now(slurm.root(["scancel", job])), restart=True)
    assert re.match(r"job \d+ was cancelled: c.restart\(\) submits a new job", line)
    bound("from scancel to the CellError", seconds, 5.0)


def test_a_node_that_slurm_declares_down(ends, slurm, bound):
    down = ["scontrol", "update", "nodename=n2", "state=down", "reason=test"]
    seconds, [line] = ends(lambda job: now(slurm.root(down)))
    slurm.back("n2")
    assert re.match(r"job \d+ ended because node n2 failed: c.restart\(\) submits", line)
    bound("from a node set down to the CellError", seconds, 5.0)


def test_a_node_that_crashes(ends, slurm, bound):
    """Slurm notices only after SlurmdTimeout."""

    def crash(job: str) -> float:
        slurm.crash("n2")
        return time.time()

    seconds, [line] = ends(crash)
    slurm.back("n2")
    assert re.match(r"ranks 2, 3 on n2 lost the connection to the controller, though job", line)
    bound("from a node's crash to the CellError", seconds, 5.0)


def test_the_time_limit(ends, bound):
    """Slurm looks for jobs over their limit every half minute, so the log's time counts."""
    profile = SUBMIT.replace("00:05:00", "00:01:00")
    seconds, [line] = ends(lambda job: None, profile)
    assert re.match(r"job \d+ reached its time limit of 00:01:00: c.restart\(\) submits", line)
    bound("from Slurm's line on the time limit to the CellError", seconds, 5.0)
