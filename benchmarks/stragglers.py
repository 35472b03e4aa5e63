"""Workers that are slow, stopped or killed: `python -m benchmarks staleness` and `chaos`.

staleness   digits to .97 with one worker ten times slower: samples and seconds until then
chaos       a quorum whose workers are stopped and killed at random: the longest wait of a round,
            and the loss beside that of an undisturbed run
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.seldom_talk import on_ranks
from numba_kernels import launch
from numba_kernels.bench import facts

FAST, SLOW, GOAL = 0.004, 0.04, ("val_accuracy", 0.97)  # seconds that a gradient takes longer
RULES = {  # strategy, its options, optimizer and learning rate
    "synchronous": ("synchronous", {}, "adam", 0.003),
    "downpour": ("downpour", {}, "adam", 0.001),
    "Ringmaster, R = 6": ("downpour", {"discard": 6}, "adam", 0.001),
    "downpour with sgd": ("downpour", {}, "sgd", 0.1),
    "DC-ASGD": ("downpour", {"delay_compensation": 0.04}, "sgd", 0.1),
    "elastic averaging": ("elastic_averaging", {"momentum": 0.8, "every": 4}, "sgd", 0.2),
    "energy matching": ("gradient_energy_matching", {}, "sgd", 0.1),
    "delayed Nesterov": ("diloco_async", {"inner_steps": 5}, "adam", 0.003),
    "quorum of 2": ("diloco_async", {"inner_steps": 5, "quorum": 2, "grace": 0.02}, "adam", 0.003),
    "local steps": ("local_steps", {"inner_steps": 5}, "adam", 0.003),
    "gossip": ("gossip", {"inner_steps": 5}, "adam", 0.003),
}
WITH_MASTER = ("downpour", "elastic_averaging", "gradient_energy_matching", "diloco_async")
EVENTS, KILLS = 30, 4  # of chaos
GRACE, MOST_STOPPED, TAKES = 0.2, 1.0, 0.02  # seconds: the last is what a gradient takes longer


def staleness(workers: int, seeds: int, epochs: int) -> dict:
    """{"machine", ..., "rows"}: a row per rule, over seeds."""
    about = facts()
    return about({"staleness": 1}, [over_seeds(name, workers, seeds, epochs) for name in RULES])


def over_seeds(name: str, workers: int, seeds: int, epochs: int) -> dict:
    ranks = workers + (RULES[name][0] in WITH_MASTER)
    each = [
        on_ranks(launch.run_ranks, ranks, "stragglers", "to_the_goal", name, seed, epochs)
        for seed in range(seeds)
    ]
    there = [run for run in each if run["reached"]]
    row = {"what": name, "reached": len(there), "seeds": seeds, "runs": each}
    for key in ("samples", "seconds"):
        row[key] = float(np.median([run[key] for run in there])) if there else None
    return row


def to_the_goal(team, name: str, seed: int, epochs: int) -> dict:
    """One run; the last rank is the slow one. Every rank calls it."""
    from tutorial_dl import Trainer, callbacks, data, strategies

    strategy, options, optimizer, rate = RULES[name]
    digits = data.digits()
    # Equal samples an update and worker: a synchronous batch is divided over all.
    size = 16 if strategy in WITH_MASTER else 16 * team.size
    trainer = Trainer(
        slowed(digits, seed, SLOW if team.rank == team.size - 1 else FAST), digits,
        strategies.get(strategy, team, **options), optimizer, size, seed=seed, learning_rate=rate,
        callbacks=[callbacks.Target(*GOAL)], progress=False,
    )  # fmt: skip
    history = trainer.fit(epochs)
    return {
        "reached": history.last[GOAL[0]] >= GOAL[1], "seconds": history.seconds,
        "samples": len(history.epochs) * len(digits.train),
        "staleness": {str(k): v for k, v in sorted(history.staleness.items())},
    }  # fmt: skip


def slowed(digits, seed: int, seconds: float):
    """The model `dense`, whose gradients take so much longer."""
    from tutorial_dl import models

    replica = models.build("dense", digits, seed)
    right = replica.compute_gradient

    def slowly(*arguments, **more):
        time.sleep(seconds)
        return right(*arguments, **more)

    replica.compute_gradient = slowly
    return replica


def chaos(ranks: int, epochs: int, seeds: int) -> dict:
    """{"machine", ..., "rows"}: runs that nobody disturbs, and disturbed ones."""
    about, rows = facts(), []
    for seed in range(seeds):
        for what in ("undisturbed", "disturbed"):
            with tempfile.TemporaryDirectory() as folder:
                pids, over, done = Path(folder, "pids"), threading.Event(), []
                arguments = pids, random.Random(seed), over, done
                others = threading.Thread(target=disturb, args=arguments, daemon=True)
                if what == "disturbed":
                    others.start()
                start = partial(launch.run_ranks, survive=True)
                calls = ranks, "stragglers", "in_rounds", str(pids), seed, epochs
                try:
                    found = on_ranks(start, *calls)
                finally:
                    over.set()
                rows.append({"what": f"{what}, seed {seed}"} | found | {"events": len(done)})
    return about({"chaos": seeds}, rows)


def in_rounds(team, pids: str, seed: int, epochs: int) -> dict:
    """One run of a quorum of two; it notes how long rounds waited. Every rank calls it."""
    from tutorial_dl import Trainer, data, schedules, strategies
    from tutorial_dl.runtime.master.master import Master

    waits, ends, right = [], [], Master.serve_round

    def timed(self):
        ends.append(time.monotonic())
        waits.append(max(0.0, ends[-1] - (self._closes - GRACE)))  # since the quorum was there
        right(self)

    Master.serve_round = timed
    if team.rank == 0:
        Path(pids).write_text(" ".join(map(str, team.processes.values())))
    digits = data.digits()
    rule = strategies.DilocoAsync(10, quorum=2, grace=GRACE, team=team)
    trainer = Trainer(
        slowed(digits, seed, TAKES), digits, rule, "adam", 16, seed=seed, progress=False,
        learning_rate=schedules.cosine(0.003, epochs * -(-len(digits.train) // 16)),
    )  # fmt: skip
    history = trainer.fit(epochs)
    return {
        "ranks": team.size, "rounds": len(waits), "longest_wait": max(waits, default=None),
        "longest_round": max(np.diff(ends), default=None), "grace": GRACE,
        "loss": history.last["loss"], "val_loss": history.last["val_loss"],
        "lost": len(history.lost), "seconds": history.seconds,
    }  # fmt: skip


def disturb(pids: Path, chance: random.Random, over: threading.Event, done: list) -> None:
    """Stop workers for a while, and kill some, at random times, until the run is over; in `done`,
    the number of each event.
    """
    while not pids.exists() or not pids.read_text():
        if over.wait(0.1):
            return
    left = [int(pid) for pid in pids.read_text().split()]
    kills = set(chance.sample(range(EVENTS), KILLS))
    for number in range(EVENTS):
        if over.wait(chance.uniform(0.05, 0.3)):
            return
        done.append(number)
        pid = chance.choice(left)
        with suppress(ProcessLookupError):
            if number in kills:
                os.kill(pid, signal.SIGKILL)
                left.remove(pid)
                continue
            os.kill(pid, signal.SIGSTOP)
            over.wait(chance.uniform(0.05, MOST_STOPPED))
            os.kill(pid, signal.SIGCONT)
