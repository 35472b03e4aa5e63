"""`python -m benchmarks population`: population based training against random search.

Both train the same random sets of values for the same number of epochs on the same ranks; the
population compares itself every `EVERY` epochs, and the worst copy the best. What counts is the
best validation loss at the end, by seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import seldom_talk
from numba_kernels import launch
from numba_kernels.bench import facts

SPACE = """
[learning_rate]
type = "float"
low = 1e-4
high = 1e-1
log = true

[beta_1]
type = "float"
low = 0.7
high = 0.97
"""
MODELS = {"cnn": ("digits", 12), "gpt": ("text", 5)}  # name: data, epochs
GROUPS, EVERY, LIMIT = 10, 1, 7200


def compare(seeds: int, models: list[str]) -> dict:
    """{"machine", ..., "rows"}: a row per model and seed."""
    for model in models:
        if model not in MODELS:
            raise ValueError(f"unknown model {model!r}; choose {' or '.join(MODELS)}")
    about, rows = facts(), []
    for model in models:
        for seed in range(seeds):
            row = {"what": f"{model}, seed {seed}", "model": model}
            for name, more in (
                ("random", ["--trials", str(GROUPS)]),
                ("population", ["--population", str(EVERY)]),
            ):
                row[name], row[f"{name} used"] = search(model, seed, more)
            rows.append(row)
            print(*row.values(), file=sys.stderr, flush=True)
    return about({"population": 1}, rows)


def search(model: str, seed: int, more: list[str]) -> tuple[float, float]:
    """The best validation loss of a search, and the share of its time that groups trained for."""
    data, epochs = MODELS[model]
    with tempfile.TemporaryDirectory() as folder:
        space, found = Path(folder, "space.toml"), Path(folder, "found.json")
        space.write_text(SPACE)
        words = ["-n", GROUPS + 1, "--space", space, "--groups", GROUPS]
        words += ["--sampler", "random", "--model", model, "--data", data, "--seed", seed]
        words += ["--epochs", epochs, "--json", found, *more]
        command = [sys.executable, "-m", "tutorial_dl", "tune", *map(str, words)]
        env = os.environ | dict.fromkeys(launch.THREAD_VARIABLES, "1")
        done = subprocess.run(command, timeout=LIMIT, env=env, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise ValueError(f"{model}, seed {seed}: tune ended with status {done.returncode}")
        result = json.loads(found.read_text())
    best = min(row["value"] for row in result["trials"] if row["state"] == "complete")
    return best, result["utilisation"]


def table_of(result: dict) -> str:
    rows, lines = result["rows"], [seldom_talk.table_of(result)]
    for model in dict.fromkeys(row["model"] for row in rows):
        pairs = [(row["population"], row["random"]) for row in rows if row["model"] == model]
        better = sum(ours < theirs for ours, theirs in pairs)
        lines.append(f"\n{model}: the population is better in {better} of {len(pairs)}")
    return "\n".join(lines)
