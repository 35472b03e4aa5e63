"""Ranks raise, die or sleep in `train` and in cells: tests of what users see."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import clock
import psutil
import pytest
from ended import wait_for
from on_ranks import ONE_CALL

from tutorial_dl import cluster
from tutorial_dl.cluster import engines
from tutorial_dl.cluster.cell_errors import CellError

EPOCHS = 10
# Asynchronous updates have a random order, so the accuracy after ten epochs is .925 to .96.
LEARNED = 0.9

# `train` on the command line -------------------------------------------------------------------

MODELS = '''
import os, signal, subprocess, sys, threading, time
sys.path.insert(0, {support!r})
from faults import die, fail, strike
from tutorial_dl import data, models
from numba_kernels import launch

def plain():
    return models.softmax(data.digits(), seed=1)

def faulty():
    """What the environment says happens to one rank: RANK, MOMENT, TURN, HOW."""
    of = os.environ
    if launch.rank() == int(of["RANK"]):
        how = {{"die": die, "fail": fail, "sleep": sleep}}[of["HOW"]]
        if how is sleep:
            subprocess.Popen([sys.executable, "-c", WAKE, str(os.getpid())])
        if of["MOMENT"] == "loading":
            how()
        elif of["MOMENT"] == "serving":
            from tutorial_dl.runtime.master.master import Master
            right, seen = Master.handle, [0]
            def handle(self, leaf):
                seen[0] += 1
                if seen[0] == int(of["TURN"]):
                    how()
                return right(self, leaf)
            Master.handle = handle
        elif of["MOMENT"] == "told":
            from numba_kernels.star import Star
            right = Star.receive_bytes
            def receive_bytes(self):
                right(self)
                open("struck", "w").close()
                how()
            Star.receive_bytes = receive_bytes
        else:
            strike(of["MOMENT"], int(of["TURN"]), how)
    elif of["HOW"] == "sleep" and launch.rank():
        from tutorial_dl.runtime.master.worker import Computing
        right = Computing._own_gradient
        def noted(self, *arguments):
            with open("others", "a") as file:
                file.write(".")
            time.sleep(0.01)
            return right(self, *arguments)
        Computing._own_gradient = noted
    return plain()

def sleep():
    os.kill(os.getpid(), signal.SIGSTOP)

# Who was stopped goes on when others have computed five gradients meanwhile.
WAKE = """
import os, signal, sys, time
def done():
    return os.path.getsize("others") if os.path.exists("others") else 0
def stopped():
    return open("/proc/" + sys.argv[1] + "/stat").read().rpartition(")")[2].split()[0] == "T"
end = time.time() + 600
while not stopped() and time.time() < end:
    time.sleep(0.01)
before = done()
while done() < before + 5 and time.time() < end:
    time.sleep(0.05)
open("meanwhile", "w").write(str(done() - before))
os.kill(int(sys.argv[1]), signal.SIGCONT)
"""
'''


@pytest.fixture
def folder(tmp_path):
    support = str(Path(ONE_CALL).parent)
    (tmp_path / "mine.py").write_text(MODELS.format(support=support))
    return tmp_path


def start(folder, *words, model="faulty", **env):
    command = [
        sys.executable, "-m", "tutorial_dl", "train", "--quiet", "--json", "-",
        "--model", f"mine.py:{model}", "--learning-rate", "0.02", *words,
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {name: str(value) for name, value in env.items()}, start_new_session=True,
    )  # fmt: skip


def ended(process, status: int, lines: int = 1) -> tuple[str, str]:
    out, err = process.communicate(timeout=6000)
    assert process.returncode == status, err
    assert err.count("\n") == lines, err
    return out, err


def learned(process, lines: int | None = None) -> tuple[dict, str]:
    """The result of a run that ends well and has learned, and what it has written."""
    out, err = process.communicate(timeout=6000)
    assert process.returncode == 0 and lines in (None, err.count("\n")), err
    result = json.loads(out)
    assert result["val_accuracy"] >= LEARNED and len(result["history"]) == EPOCHS
    return result, err


DOWNPOUR = ("--strategy", "downpour", "-n", "3", "--epochs", str(EPOCHS))


def test_a_worker_dies_under_train(folder):
    one = start(folder, *DOWNPOUR, "--timeline", "t.json", RANK=2, MOMENT="gradient", TURN=30,
                HOW="die")  # fmt: skip
    other = start(folder, *DOWNPOUR, "--synchronous", RANK=1, MOMENT="data", TURN=40, HOW="fail")
    result, err = learned(one)
    assert "note: the worker on rank 2 is lost: its process" in err and "Traceback" not in err
    assert len(result["lost"]) == 1 and "the worker on rank 2 is lost" in result["lost"][0]
    assert json.loads((folder / "t.json").read_text())
    _, err = learned(other)  # what the ranks print shows where it failed
    assert err.count("Traceback") == 1 and 'raise Fault("by purpose")' in err
    assert "note: the worker on rank 1 is lost: Fault: by purpose" in err


@pytest.mark.thorough
def test_a_worker_of_a_sub_master_dies_under_train(folder):
    layout = ("--masters", "2", "--workers", "2", "--epochs", str(EPOCHS))
    result, _ = learned(start(folder, "--strategy", "downpour", *layout, RANK=2, MOMENT="gradient",
                              TURN=30, HOW="die"))  # fmt: skip
    assert len(result["lost"]) == 1 and "worker on rank 2" in result["lost"][0]


@pytest.mark.thorough(but="fail-0-1")
@pytest.mark.parametrize(
    ("how", "rank", "layout"),
    [("fail", 0, 1), ("die", 1, 2)],  # the master, or a sub-master
)
def test_a_master_is_lost(folder, how, rank, layout):
    words = ["--strategy", "downpour", "--epochs", str(EPOCHS), "--checkpoint", "saved"]
    words += ["--checkpoint-every", "20"]
    words += ["-n", "3"] if layout == 1 else ["--masters", "2", "--workers", "1"]
    process = start(folder, *words, RANK=rank, MOMENT="serving", TURN=150, HOW=how)
    began = time.monotonic()
    out, err = process.communicate(timeout=6000)
    assert process.returncode == 1 and not out, err
    if how == "die":
        assert err.count("\n") == 1, err
        who = (
            "the sub-master on rank" if rank else "the master (rank 0) was ended by signal SIGKILL"
        )
        assert who in err
    else:
        assert "Fault: by purpose" in err
    clock.note("a run ends with its master", time.monotonic() - began)
    learned(start(folder, *words, "--resume", model="plain"), lines=1)


@pytest.mark.thorough
def test_signals(folder):
    """Ctrl-C ends all ranks; SIGTERM writes a checkpoint, from which training continues."""
    long = ("--strategy", "downpour", "-n", "3", "--epochs", "100000")
    process = start(folder, *long, "--checkpoint", "run", "--checkpoint-every", "50", model="plain")
    wait_for(lambda: list(folder.glob("run/step_*")), process)
    process.send_signal(signal.SIGTERM)
    _, err = ended(process, 75)
    assert "ended by a signal after step" in err and "is written, resume from it" in err
    last = max(int(path.name[5:]) for path in folder.glob("run/step_*"))
    assert f"after step {last};" in err
    words = (*DOWNPOUR[:4], "--checkpoint", "run", "--resume", "--target", "val_accuracy=0.9")
    done = start(folder, *words, "--epochs", "100000", model="plain")
    out, err = ended(done, 0)
    assert f"going on from step {last}" in err
    assert json.loads(out)["stopped"].endswith("has reached 0.9")

    # Send SIGINT to a run that has lost a worker.
    process = start(folder, *long, "--checkpoint", "other", "--checkpoint-every", "50",
                    RANK=1, MOMENT="gradient", TURN=20, HOW="die")  # fmt: skip
    wait_for(lambda: list(folder.glob("other/step_*")), process)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in err, err
    clock.note("Ctrl-C ends a run that has lost a worker", time.monotonic() - began)


@pytest.mark.thorough
def test_a_worker_sleeps_for_a_while(folder):
    """A worker is stopped for a while: the others go on, it returns, and nothing is lost."""
    process = start(folder, *DOWNPOUR, RANK=1, MOMENT="gradient", TURN=30, HOW="sleep")
    result, _ = learned(process, lines=0)
    assert result["lost"] == []
    shares = result["batches_by_rank"]
    assert shares["1"] + shares["2"] == EPOCHS * 45, shares
    assert int((folder / "meanwhile").read_text()) >= 5


@pytest.mark.thorough
def test_a_worker_dies_when_all_is_done(folder):
    """The worker dies after its last message, so nothing is missing."""
    process = start(folder, *DOWNPOUR, RANK=2, MOMENT="told", TURN=1, HOW="die")
    result, _ = learned(process, lines=0)
    assert all(line.startswith("rank 2 is lost, after the end: ") for line in result["lost"])
    assert (folder / "struck").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_dies_while_models_are_made(folder, rank):
    process = start(folder, *DOWNPOUR, RANK=rank, MOMENT="loading", TURN=0, HOW="die")
    _, err = ended(process, 1)
    master = "error: the master (rank 0) was ended by signal SIGKILL"
    assert (master if rank == 0 else f"rank {rank} failed: its process") in err, err


@pytest.mark.thorough(but="synchronous")
@pytest.mark.parametrize("strategy", ["synchronous", "downpour"])
def test_mpiexec_is_killed(folder, strategy):
    words = ("--strategy", strategy, "-n", "2", "--epochs", "100000", "--checkpoint", "saved")
    process = start(folder, *words, "--checkpoint-every", "20", model="plain")
    wait_for(lambda: list(folder.glob("saved/step_*")), process)
    below = psutil.Process(process.pid).children(recursive=True)
    [mpiexec] = [one for one in below if "mpiexec" in one.name()]
    mpiexec.kill()
    _, err = ended(process, 1)
    assert "error: mpiexec or a rank's supervisor was ended by signal SIGKILL" in err, err


@pytest.mark.thorough
def test_all_workers_die(folder):
    process = start(folder, "--strategy", "downpour", "-n", "2", RANK=1, MOMENT="gradient",
                    TURN=5, HOW="die")  # fmt: skip
    _, err = ended(process, 1)
    assert "error: no worker is left to train: the worker on rank 1 is lost" in err


# In cells --------------------------------------------------------------------------------------

CELL = """
from tutorial_dl import Trainer, data, models, strategies
from numba_kernels import Team
digits, team = data.digits(), Team()

class Fault(Exception): ...

trainer = Trainer(
    models.softmax(digits), digits, strategies.Downpour(team=team), 'adam', progress=False
)
"""
FAILING = """
right, turns = trainer.replica.compute_gradient, []

def wrong(batch):
    turns.append(1)
    if team.rank == 2 and len(turns) == 5:  # few, as other workers may be faster
        raise Fault("by purpose")
    return right(batch)

trainer.replica.compute_gradient = wrong
history = trainer.fit(4)
"""


@pytest.mark.thorough
def test_in_cells(tmp_path, monkeypatch):
    """A worker raises in a cell: the others train to the end, and the next cell works."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    with cluster.start(n=3) as c:
        monkeypatch.setattr(engines, "_running", None)
        c.run(CELL)
        with pytest.raises(CellError) as caught:
            c.run(FAILING)
        assert "rank 2: Fault: by purpose" in caught.value.summary[0]
        c.run(
            "if team.rank != 2:\n"
            "    assert len(history.epochs) == 4 and 'rank 2 is lost' in history.lost[0]\n"
            "trainer.replica.compute_gradient = right\n"
            "history = trainer.fit(1)\n"
            "assert len(history.epochs) == 5 and len(history.lost) == 1\n"
            "weights = trainer.replica.parameters\n"
            "assert (team.allgather(weights) == weights).all()"
        )
