"""`python -m benchmarks digits-gan` or `shower-gan`: quality after training, seed by seed.

Ranks train the GAN synchronously with each of several seeds. The digits have 60 epochs. The showers
stop when separation, profile and resolution are good, or after 60 epochs, and their best epoch is
judged (`Best`). What is asked of a GAN stands beside what was measured (`ASKED`).

The rows are written after each seed. `--seeds 1 --first-seed 3` runs one seed alone; rows of other
seeds that are in the file already stay there.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numba_kernels import launch
from numba_kernels.bench import facts

SEEDS = {"digits-gan": 5, "shower-gan": 3}
EPOCHS = 60
BATCH = {"digits-gan": 32, "shower-gan": 64}
GOOD = {"separation": 0.045, "profile_error": 0.08, "resolution_error": 0.2}  # showers stop here
AT = (50.0, 200.0, 400.0)  # GeV, where the response is measured
EACH = 400  # showers at each of these energies
LIMIT = 1200  # seconds for one seed
COLUMNS = {
    "digits-gan": ("seed", "epochs", "seconds", "whole_seconds", "accuracy_asked",
                   "missing_classes", "of_real", "frechet", "frechet_floor"),
    "shower-gan": ("seed", "epochs", "seconds", "whole_seconds", "profile", "response",
                   "resolution", "separation", "separation_floor", "separation_ceiling", "frechet",
                   "frechet_floor", "frechet_ceiling", "auc", "auc_floor", "auc_ceiling"),
}  # fmt: skip


class Asked(NamedTuple):
    """A figure that every seed must reach: `worst(row)` is at least, or at most, `bound`."""

    words: str
    column: str
    sign: str  # "at least", "at most" or "below"
    bound: float
    worst: Callable[[Any], float] = float

    def met(self, value: float) -> bool:
        if self.sign == "at least":
            return value >= self.bound
        return value < self.bound if self.sign == "below" else value <= self.bound


def farthest(ratios: list[float]) -> float:
    """How far from 1 the farthest ratio is."""
    return max(abs(ratio - 1) for ratio in ratios)


MINUTES = {"digits-gan": 4, "shower-gan": 12}  # that a seed may take, from start to end
ASKED = {
    "digits-gan": (
        Asked("images that a classifier takes for the class asked for",
              "accuracy_asked", "at least", 0.85),
        Asked("missing classes", "missing_classes", "at most", 0),
        Asked("accuracy of that classifier on real digits", "of_real", "at least", 0.97),
    ),
    "shower-gan": (
        Asked("mean profile: error in layers with 90% of the energy", "profile", "at most", 0.10),
        Asked("response at 50, 200, 400 GeV: error", "response", "at most", 0.05, farthest),
        Asked("resolution there: error", "resolution", "at most", 0.30, farthest),
        Asked("mean separation power", "separation", "below", 0.05),
    ),
}  # fmt: skip


def compare(
    model: str,
    ranks: int,
    seeds: Iterable[int] | None = None,
    epochs: int | None = None,
    file: Path | None = None,
) -> dict:
    """{"machine", ..., "rows", "asked"}: a row per seed. Every seed is a run of its own.

    Args:
        seeds: None: 0, 1, ... as many as are asked of the model.
        epochs: The most epochs of each seed; None: 60.
        file: Where the result is written after each seed. Its rows of other seeds are kept, if they
            are of the same model, ranks and number of epochs.
    """
    about, epochs = facts(), EPOCHS if epochs is None else epochs
    seeds = list(range(SEEDS[model]) if seeds is None else seeds)
    rows = [row for row in rows_in(file, model, ranks, epochs) if row["seed"] not in seeds]
    result: dict = {}
    for seed in seeds:
        began = time.perf_counter()
        row = of_one_seed(model, ranks, seed, epochs)
        row |= {"what": model, "ranks": ranks, "most_epochs": epochs}
        rows.append(row | {"whole_seconds": time.perf_counter() - began})
        rows.sort(key=lambda one: one["seed"])
        result = about({model: len(seeds)}, rows) | {"asked": beside(model, rows)}
        if file is not None:
            part = file.with_suffix(".part")
            part.write_text(json.dumps(result, indent=1) + "\n")
            part.replace(file)
        words = ", ".join(f"{name} {_cell(row[name])}" for name in COLUMNS[model] if name in row)
        print(f"{model} on {ranks} ranks: {words}", file=sys.stderr, flush=True)
    return result


def rows_in(file: Path | None, model: str, ranks: int, epochs: int) -> list[dict]:
    """The rows that a file has of such runs already."""
    if file is None or not file.is_file():
        return []
    try:
        rows = json.loads(file.read_text())["rows"]
        told = [(row["what"], row["ranks"], row["most_epochs"]) for row in rows]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} is there, and is no result of {model}") from None
    return [row for row, of in zip(rows, told, strict=True) if of == (model, ranks, epochs)]


def of_one_seed(model: str, ranks: int, seed: int, epochs: int) -> dict:
    """The row that ranks write which train with this seed."""
    env = dict.fromkeys(launch.THREAD_VARIABLES, "1")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "row.json")
        call = f"one_run({model!r}, {seed}, {str(file)!r}, {epochs})"
        code = f"from benchmarks.gan_quality import one_run; {call}"
        done = launch.run_ranks(ranks, ["-c", code], env=env, timeout=LIMIT)
        if done.returncode:
            raise ValueError(f"{model}, seed {seed}: ended with status {done.returncode}")
        return json.loads(file.read_text())


def beside(model: str, rows: list[dict]) -> list[dict]:
    """What is asked beside what was measured: the worst seed, and the mean over seeds."""
    found = []
    within = Asked("minutes from start to end", "whole_seconds", "at most", MINUTES[model],
                   lambda seconds: seconds / 60)  # fmt: skip
    for one in (*ASKED[model], within):
        values = [one.worst(row[one.column]) for row in rows]
        worst = min(values) if one.sign == "at least" else max(values)
        found.append({
            "figure": one.words, "asked": f"{one.sign} {one.bound:g}", "worst": worst,
            "mean": float(np.mean(values)), "met": sum(map(one.met, values)), "seeds": len(values),
        })  # fmt: skip
    return found


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
    """Keeps the averaged weights of the best epoch, and stops when it is good.

    An epoch is as bad as the worst of its columns in `GOOD`, each over what is good.
    """

    def __init__(self, average, team) -> None:
        self.average, self.team, self.weights, self.least = average, team, None, np.inf

    def __call__(self, trainer, row: dict) -> None:
        worst = max(row[name] / value for name, value in GOOD.items())
        if worst < self.least:
            self.least, self.weights = worst, self.average.weights.copy()
        if worst <= 1:
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
        "frechet": found["frechet"], "frechet_floor": found["frechet of data"],
        "classes": found["classes"],
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
    responses, resolutions = [], []
    for energy in AT:
        asked = np.full(EACH, energy, np.float32)
        ours = quality.response(game.sample(asked, EACH, seed + 1), energy)
        theirs = quality.response(showers_at(asked, first + 2 * n), energy)
        responses.append(ours[0] / theirs[0])
        resolutions.append(ours[1] / theirs[1])
    row = {"profile": found["profile"], "response": responses, "resolution": resolutions}
    for name in ("separation", "frechet", "auc"):
        row[name] = found["generated"][name]
        row[f"{name}_floor"] = found["simulation again"][name]
        row[f"{name}_ceiling"] = found["mean shower"][name]
    return row


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
    """The rows as a table in Markdown, and below it what is asked beside what was measured."""
    names = COLUMNS[result["rows"][0]["what"]]
    lines = [f"{result['machine']}, load {result['load']} before", ""]
    lines += [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in result["rows"]]
    lines += ["", "| figure | asked | worst seed | mean | met by |", "|---|---|---|---|---|"]
    lines += [
        f"| {one['figure']} | {one['asked']} | {_cell(one['worst'])} | {_cell(one['mean'])} | "
        f"{one['met']} of {one['seeds']} |"
        for one in result["asked"]
    ]
    return "\n".join(lines)


def _cell(value) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
