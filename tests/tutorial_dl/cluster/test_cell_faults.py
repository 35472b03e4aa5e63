"""The cells of one cluster meet many faults; without a restart it still trains correctly."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import clock
import pytest

from tutorial_dl import cluster
from tutorial_dl.cluster import engines
from tutorial_dl.cluster.cell_errors import CellError, CellInterrupted

SETUP = """
import os, signal, threading, time
import numpy as np
from numba_kernels import Team
from numba_kernels.optimizers import Adam
from tutorial_dl import data, models
from tutorial_dl.training import Trainer
digits = data.load("digits")
team = Team()
x = team.empty(1000)

def make():
    model = models.build("softmax", digits, seed=0)
    return Trainer(model, digits, "synchronous", Adam(0.01), 64, team=team, progress=False)

class Fault(Exception): ...

def fit_and_fail(rank, step, how):
    '''Train; in the given step of it, one rank does something.'''
    right, count = trainer.strategy.step, 0
    def wrong(batch):
        nonlocal count
        count += 1
        if count == step and team.rank == rank:
            how()
        return right(batch)
    trainer.strategy.step = wrong
    try:
        trainer.fit(1)
    finally:
        trainer.strategy.step = right

def fails():
    raise Fault("by purpose")

def leaves():
    raise SystemExit(3)

def stops():
    pid = os.getpid()
    os.system(f"(sleep 0.5; kill -CONT {pid}) & kill -STOP {pid}")

reference = make()
reference.fit(2)
expected = reference.replica.parameters.copy()
checkpoint = make().replica.parameters.copy()
trainer = make()
trainer.fit(1)
"""

# A cell's code, and its root cause's message; {k} is the rank that fails, {s} a step.
FAULTS = {
    "raises": ("fit_and_fail({k}, {s}, fails)", "rank {k}: Fault: by purpose"),
    "exits": ("fit_and_fail({k}, {s}, leaves)", "rank {k}: SystemExit: 3"),
    "before": ("if team.rank == {k}: fails()\ntrainer.fit(1)", "rank {k}: Fault: by purpose"),
    "after": ("trainer.fit(1)\nif team.rank == {k}: fails()", "rank {k}: Fault: by purpose"),
    "shape": ("team.allreduce(np.ones(100 + (team.rank == {k})))", "MismatchError"),
    "kind": ("team.barrier() if team.rank == {k} else team.allreduce(x)", "MismatchError"),
    "team": ("if team.rank == {k}: fails()\nTeam()", "rank {k}: Fault: by purpose"),
    "all": ("raise Fault('everywhere')", "Fault: everywhere"),
    "own": ("fit_and_fail({k}, {s}, lambda: team.abort(Fault('said')))", "Fault: said"),
    "stopped": ("fit_and_fail({k}, {s}, stops)", None),
    "button": ("while True: trainer.fit(1)", "interrupted"),
}


def provoke(c: cluster.Cluster, name: str, rank: int, step: int) -> None:
    """Run the cell, check how it ends, and note how long it took."""
    code, said = FAULTS[name]
    code = code.format(k=rank, s=step)
    began = time.monotonic()
    if said is None:
        c.run(code)
        return
    if name == "button":
        pressed = []

        def press():
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Timer(0.5, press).start()
        with pytest.raises(CellInterrupted) as caught:
            c.run(code)
        began = pressed[0]
    else:
        with pytest.raises(CellError) as caught:
            c.run(code)
    clock.note("a cell ends after a fault", time.monotonic() - began)
    first = caught.value.summary[0]
    assert said.format(k=rank) in first, f"{name}: {caught.value.summary}"


def fault_after_fault(n: int, names: list[str], seed: int) -> None:
    """Provoke these faults on one cluster of `n` engines, and check that it trains on correctly."""
    chance = random.Random(seed)
    with cluster.start(n=n, timeout=600) as c, pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "_running", None)
        c.run(SETUP)
        pids = [engine.pid for engine in c.status()]
        for turn, name in enumerate(names):
            provoke(c, name, chance.randrange(n), chance.randrange(2, 20))
            c.run("assert (team.allreduce(np.ones(5)) == team.size).all()")
            if turn % 10 == 9:
                c.run("trainer.fit(1)")
        # It still trains, with the same result on all ranks.
        c.run("history = trainer.fit(3)\nassert history.last['val_accuracy'] > 0.88")
        c.run("w = trainer.replica.parameters\nassert (team.allgather(w) == w).all()")
        # From the same checkpoint it comes to the same bits as without any fault.
        c.run(
            "trainer = make()\ntrainer.replica.parameters[:] = checkpoint\ntrainer.fit(2)\n"
            "assert (trainer.replica.parameters == expected).all()"
        )
        assert [engine.pid for engine in c.status()] == pids  # there was no restart


@pytest.mark.thorough
def test_fault_after_fault(tmp_path, monkeypatch):
    """Every fault once. `make soak` has 50 in a row, 2 to 4 ranks, and ranks without a window."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    fault_after_fault(3, [*FAULTS], seed=3)
