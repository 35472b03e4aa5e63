"""`python -m tutorial_dl bench digits-gan` or `shower-gan`: quality after training, seed by seed.

Ranks train the GAN synchronously with each of several seeds. The digits have 60 epochs. The showers
stop when both separation and profile are good, or after 60 epochs; their best epoch is judged.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from numba_kernels import launch
from numba_kernels.bench import facts

SEEDS = {"digits-gan": 5, "shower-gan": 3}
EPOCHS = 60
BATCH = {"digits-gan": 32, "shower-gan": 64}
GOOD = {"separation": 0.045, "profile_error": 0.08}  # showers stop here
AT = (50.0, 200.0, 400.0)  # GeV, where the response is measured
EACH = 400  # showers at each of these energies
LIMIT = 1200  # seconds for one seed
COLUMNS = {
    "digits-gan": ("seed", "epochs", "seconds", "accuracy_asked", "missing_classes", "of_real"),
    "shower-gan": ("seed", "epochs", "seconds", "separation", "floor", "ceiling", "profile",
                   "response", "resolution", "auc", "auc_floor", "auc_ceiling"),
}  # fmt: skip


def compare(model: str, ranks: int) -> dict:
    """{"machine", ..., "rows"}: a row per seed. Every seed is a run of its own."""
    about, rows = facts(), []
    for seed in range(SEEDS[model]):
        env = dict.fromkeys(launch.THREAD_VARIABLES, "1")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "row.json")
            call = f"one_run({model!r}, {seed}, {str(file)!r})"
            code = f"from tutorial_dl.bench.gan_quality import one_run; {call}"
            done = launch.run_ranks(ranks, ["-c", code], env=env, timeout=LIMIT)
            if done.returncode:
                raise ValueError(f"{model}, seed {seed}: ended with status {done.returncode}")
            rows.append(json.loads(file.read_text()) | {"what": model, "ranks": ranks})
    return about({model: SEEDS[model]}, rows)


def one_run(model: str, seed: int, file: str, epochs: int = EPOCHS, samples: Any = None) -> None:
    """Train with one seed, and write its row; every rank calls it.

    samples: of the training data; None: all, or 6000 showers.
    """
    from numba_kernels.team.team import Team
    from tutorial_dl import data, models
    from tutorial_dl.training.gan import Average, gan_trainer
    from tutorial_dl.training.gan_quality import Quality

    team = Team()
    digits = model == "digits-gan"
    dataset = data.digits() if digits else data.showers.small_showers(samples or 6000)
    game = models.build(model, dataset, seed)
    average = Average(game)
    best, quality = Best(average, team), Quality(game, dataset, average, seed)
    trainer = gan_trainer(
        game, dataset, "synchronous", batch_size=BATCH[model], seed=seed, team=team,
        callbacks=[] if digits else [quality, best], progress=False, average=average,
    )  # fmt: skip
    began = time.perf_counter()
    history = trainer.fit(epochs)
    seconds = time.perf_counter() - began
    if team.rank:
        return
    if best.weights is not None:
        average.weights = best.weights
    row = {"seed": seed, "epochs": len(history.epochs), "seconds": seconds}
    with average.swapped():
        row |= of_digits(game, dataset, seed) if digits else of_showers(game, seed)
    Path(file).write_text(json.dumps(row))


class Best:
    """Keeps the averaged weights of the epoch with the least separation; stops when it is good."""

    def __init__(self, average, team) -> None:
        self.average, self.team, self.weights, self.least = average, team, None, np.inf

    def __call__(self, trainer, row: dict) -> None:
        if row["separation"] < self.least:
            self.least, self.weights = row["separation"], self.average.weights.copy()
        if all(row[name] <= value for name, value in GOOD.items()):
            self.weights = self.average.weights.copy()
            trainer.stop("the showers are good")


def of_digits(game, dataset, seed: int) -> dict:
    """What a classifier of real digits says of 1000 generated ones."""
    from tutorial_dl.quality.digits import judge

    asked = np.arange(1000) % dataset.classes
    of = judge(dataset, seed)
    found = of.report(game.sample(asked, len(asked), seed), asked)
    missing = len(found["missing"])
    return {
        "accuracy_asked": found["accuracy"], "missing_classes": missing, "of_real": of.accuracy,
    }  # fmt: skip


def of_showers(game, seed: int, n: int = 1000) -> dict:
    """CaloChallenge's numbers, with both baselines, and the response at three energies."""
    from tutorial_dl.data import showers
    from tutorial_dl.data.calorimeter import SMALL
    from tutorial_dl.quality import showers as quality

    first = 100_000  # numbers that no training set has
    simulated = showers.simulate(range(first, first + n), 0, SMALL)
    energies = simulated.energies.astype(np.float32)
    other = showers_at(energies, first + n)
    made = game.sample(energies, n, seed)
    real = simulated.voxels / np.float32(1000)
    found = quality.report(made, real, energies, other)
    floor, ceiling = found["simulation again"], found["mean shower"]
    responses, resolutions = [], []
    for energy in AT:
        asked = np.full(EACH, energy, np.float32)
        ours = quality.response(game.sample(asked, EACH, seed + 1), energy)
        theirs = quality.response(showers_at(asked, first + 2 * n), energy)
        responses.append(ours[0] / theirs[0])
        resolutions.append(ours[1] / theirs[1])
    return {
        "separation": found["generated"]["separation"], "floor": floor["separation"],
        "ceiling": ceiling["separation"], "profile": found["profile"], "response": responses,
        "resolution": resolutions, "auc": found["generated"]["auc"], "auc_floor": floor["auc"],
        "auc_ceiling": ceiling["auc"],
    }  # fmt: skip


def showers_at(energies: np.ndarray, first: int) -> np.ndarray:
    """Simulated showers of these energies (n,) GeV, voxels (n, layers, x, y) in GeV."""
    from tutorial_dl.data import showers
    from tutorial_dl.data.calorimeter import SMALL

    parts = [
        showers.simulate([first + i], 0, SMALL, (float(e), float(e))).voxels
        for i, e in enumerate(energies)
    ]
    return np.concatenate(parts) / np.float32(1000)


def table_of(result: dict) -> str:
    """The rows as a table in Markdown."""
    names = COLUMNS[result["rows"][0]["what"]]
    lines = [f"{result['machine']}, load {result['load']} before", ""]
    lines += [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in result["rows"]]
    return "\n".join(lines)


def _cell(value) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
