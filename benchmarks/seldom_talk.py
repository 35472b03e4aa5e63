"""`python -m benchmarks seldom`: ten million parameters on two nodes with 1 Gbit/s between them.

Synchronous training and DiLoCo, with 32 and with 8 bits a number: samples per second, the loss at
equal samples, and the bytes that leave a node, as its network interface counts them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np

from benchmarks import two_nodes
from numba_kernels import launch
from numba_kernels.bench import facts

TIMEOUT = 3600.0
WIDTH, REPEATS, BATCH, RATE = 3100, 5, 64, 0.0003  # 64-3100-3100-10: 9.8 million parameters
RUNS = {  # strategy, its options
    "synchronous": ("synchronous", {}),
    "synchronous, int8": ("synchronous", {"compression": "int8"}),
    "DiLoCo, H = 50": ("local_steps", {"inner_steps": 50}),
    "DiLoCo, H = 50, int8": ("local_steps", {"inner_steps": 50, "compression": "int8"}),
}


def on_ranks(start: Callable, ranks: int, module: str, function: str, *arguments) -> dict:
    """What rank 0 returns of `function(team, *arguments)` of a module, which every rank calls."""
    with tempfile.TemporaryDirectory() as folder:
        call = str(Path(folder, "found.json")), module, function, arguments
        code = f"from benchmarks.seldom_talk import one_rank; one_rank(*{call!r})"
        env = dict.fromkeys(launch.THREAD_VARIABLES, "1")
        done = start(ranks, ["-c", code], env=env, timeout=TIMEOUT)
        if done.returncode or not Path(call[0]).exists():
            raise ValueError(f"{function}{arguments} ended with status {done.returncode}")
        return json.loads(Path(call[0]).read_text())


def one_rank(file: str, module: str, function: str, arguments: tuple) -> None:
    from numba_kernels.team.team import Team
    from tutorial_dl.cli.train import leave

    launch.can_be_lost()
    team = Team()
    found = getattr(import_module(f"benchmarks.{module}"), function)(team, *arguments)
    if team.rank == 0:
        Path(file).write_text(json.dumps(found))
    leave(0)


def compare(per_node: int, epochs: int) -> dict:
    """{"machine", ..., "rows"}: a row for each of RUNS."""
    about, rows = facts(), []
    for name in RUNS:
        found = on_ranks(two_nodes.run, 2 * per_node, "seldom_talk", "train", name, epochs)
        rows.append({"what": name} | found)
        rows[-1]["times"] = found["samples_per_second"] / rows[0]["samples_per_second"]
    return about({"seldom": 1}, rows)


def train(team, name: str, epochs: int) -> dict:
    """One run. Every rank calls it."""
    from tutorial_dl import Trainer, data, strategies
    from tutorial_dl.replica import DenseReplica

    strategy, options = RUNS[name]
    digits = data.digits()
    # An epoch has more than 50 steps, so that its end is seldom the end of a round.
    x, y = (np.concatenate([part] * REPEATS) for part in digits.train.take(slice(None)))
    whole = data.Dataset("digits", data.Data.of(x, y), digits.validation, digits.classes)
    made = strategies.get(strategy, team, **options)
    trainer = Trainer(
        DenseReplica((64, WIDTH, WIDTH, 10), seed=0), whole, made, "adam", BATCH,
        learning_rate=RATE, progress=False,
    )  # fmt: skip
    before, history = sent(), trainer.fit(epochs)
    return {
        "nodes": os.environ.get(two_nodes.LABEL), "ranks": team.size,
        "parameters": trainer.replica.parameters.size,
        "loss": history.last["loss"], "val_loss": history.last["val_loss"],
        "samples_per_second": history.samples_per_second,
        "bytes_a_step": None if before is None else (sent() - before) / trainer.steps,
    }  # fmt: skip


def sent() -> int | None:
    """Bytes that have left this node; None if it is no namespace with a link of its own."""
    links = (line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    return next((int(of.split()[8]) for name, of in links if name.strip() == two_nodes.CABLE), None)


def table_of(result: dict) -> str:
    """The rows as a table in Markdown."""
    rows, hidden = result["rows"], ("what", "runs")
    keys = list(dict.fromkeys(key for row in rows for key in row if key not in hidden))
    lines = [f"{result['machine']}, load {result['load']} before", ""]
    lines += [f"| | {' | '.join(keys).replace('_', ' ')} |", "|---" * (len(keys) + 1) + "|"]
    for row in rows:
        shown = (row.get(key) for key in keys)
        texts = (
            f"{one:.4g}" if isinstance(one, float) else "" if one is None else str(one)
            for one in shown
        )
        lines.append(f"| {row['what']} | {' | '.join(texts)} |")
    return "\n".join(lines)
