"""Bench: seconds of training until a model is good enough, by optimizer; tuned Adam is the base.

    python -m tutorial_dl bench time-to-accuracy -n 2

Each task is a model, data, and a figure to reach. Each entry is what `train` may be told. Adam's
learning rate and batch size are the quickest of three to seven pairs, on seeds not measured
here; one to three pairs were tried of each other entry, so the base is the best tuned. Entries
take turns, seed by seed, so that what else the machine does falls on all of them. Seconds are those
of the history: training alone, without validation, and without the first gradient, which is
compiled before. Entries that lose stay in the table.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SEEDS = range(10, 15)
BASE = "adam"


class Task(NamedTuple):
    """What is to be reached: the option --target, within so many epochs."""

    model: str
    data: str
    target: str
    epochs: int
    entries: dict[str, dict[str, Any]]
    compile: str = "auto"  # what is faster here; to try both takes most of the time


def entry(optimizer: str, learning_rate: float, batch_size: int, **more: Any) -> dict[str, Any]:
    found = {"optimizer": optimizer, "learning_rate": learning_rate, "batch_size": batch_size}
    return found | more


TASKS = {
    "classes of digits": Task(
        "cnn", "digits", "val_accuracy=0.985", 30,
        {
            "adam": entry("adam", 0.004, 64),
            "adam, ema": entry("adam", 0.002, 32, ema=0.98),
            "muon": entry("muon", 0.005, 64),
            "soap": entry("soap", 0.003, 64),
            "schedule-free": entry("schedule_free_adamw", 0.01, 64),
        },
        "graph",
    ),
    "kinds of events": Task(
        "lstm", "events", "val_accuracy=0.92", 20,
        {
            "adam": entry("adam", 0.02, 50),
            "muon": entry("muon", 0.03, 50),
            "soap": entry("soap", 0.02, 50),
            "schedule-free": entry("schedule_free_adamw", 0.05, 50),
        },
        "xla",
    ),
    "energies of showers": Task(
        "mlp", "small-showers", "val_loss=9.5", 12,
        {
            "adam": entry("adam", 0.003, 64),
            "adam, ema": entry("adam", 0.005, 64, ema=0.98),
            "schedule-free": entry("schedule_free_adamw", 0.005, 64),
        },
        "graph",
    ),
    "next characters": Task(
        "gpt", "text", "val_loss=1.82", 10,
        {
            "adam": entry("adam", 0.005, 16),
            "muon": entry("muon", 0.01, 32),
            "soap": entry("soap", 0.003, 32),
        },
        "graph",
    ),
}  # fmt: skip


def rows(seconds: float, full: bool) -> list[dict]:
    """A row per task and entry. Collective; `one_run` of numba_kernels.bench calls it."""
    return [row for name, task in TASKS.items() for row in rows_of(name, task, SEEDS)]


def rows_of(name: str, task: Task, seeds) -> list[dict]:
    """The rows of a task: by entry, what `one_training` returns for each seed. Collective."""
    from numba_kernels.team.team import Team

    from .. import data

    team, dataset = Team(), data.load(task.data)
    found: dict[str, list] = {entry: [] for entry in task.entries}
    for seed in seeds:
        for entry, options in task.entries.items():
            epochs, seconds = one_training(task, options, dataset, seed, team)
            found[entry].append((epochs, seconds))
            if team.rank == 0:
                words = f"{epochs} epochs, {seconds:.2f} s" if seconds else "not reached"
                print(f"{name}, seed {seed}, {entry}: {words}", file=sys.stderr, flush=True)
    return [
        {"task": name, "target": task.target, "entry": entry, "options": task.entries[entry],
         "ranks": team.size, "epochs": [one for one, _ in runs], "seconds": [s for _, s in runs]}
        for entry, runs in found.items()
    ]  # fmt: skip


def one_training(task: Task, options: Mapping, dataset, seed: int, team) -> tuple:
    """(Epochs, seconds) until the target is reached; (None, None) if it is not. Collective."""
    from ..config import RunConfig
    from ..training.setup import prepare

    config = RunConfig.of(
        model=task.model, data=task.data, target=task.target, epochs=task.epochs, seed=seed,
        quiet=True, compile=task.compile, **options,
    )  # fmt: skip
    config.check()
    trainer = prepare(config, team, None, dataset)
    trainer.replica.compute_gradient(dataset.train.take(slice(0, config.data.batch_size)))
    history = trainer.fit(task.epochs)
    if trainer.stopped is None:
        return None, None
    return len(history.epochs), sum(row["seconds"] for row in history.epochs)


def commit() -> str:
    """The commit that is measured, of a checkout; else the version."""
    from importlib.metadata import version

    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return version("tutorial_dl")
    return done.stdout.strip() or version("tutorial_dl")


def quarters(seconds: list[float | None]) -> np.ndarray:
    """The lower quarter, the median and the upper quarter; a run that did not arrive took for ever.

    >>> quarters([3.0, 1.0, None, 2.0, None])
    array([ 2.,  3., inf])
    """
    times = np.array([np.inf if one is None else one for one in seconds])
    return np.quantile(times, [0.25, 0.5, 0.75], method="inverted_cdf")


def table(result: dict) -> str:
    """The leaderboard, a part per task, the quickest first."""
    about = f"{result['machine']}, load {result['load']} before, commit {result['commit']}"
    lines = [about]
    by_task: dict[str, list[dict]] = {}
    for row in result["rows"]:
        by_task.setdefault(row["task"], []).append(row)
    for name, entries in by_task.items():
        base = next(quarters(row["seconds"])[1] for row in entries if row["entry"] == BASE)
        ranks = entries[0]["ranks"]
        lines += [
            "", f"{name}: {entries[0]['target']} on {ranks} ranks", "",
            "| entry | options | reached | epochs | seconds (quarters) | times as fast |",
            "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for row in sorted(entries, key=lambda row: quarters(row["seconds"])[1]):
            low, middle, high = quarters(row["seconds"])
            reached = sum(one is not None for one in row["seconds"])
            options = " ".join(f"{k}={v}" for k, v in row["options"].items())
            epochs = quarters(row["epochs"])[1]
            ratio = base / middle if np.isfinite(middle) else 0.0
            lines.append(
                f"| {row['entry']} | {options} | {reached} of {len(row['seconds'])} | {epochs:g} | "
                f"{middle:.2f} ({low:.2f} to {high:.2f}) | {ratio:.2f} |"
            )
    return "\n".join(lines)
