"""`python -m tutorial_dl bench gan-strategies`: the same GAN by every strategy, with 5 seeds.

The data are numbers with two peaks. A run is judged after each epoch by the distance between its
samples and the data (Wasserstein-1), with a moving average of the generator's weights over epochs,
which every strategy gets alike. It reaches the goal when the median of 5 epochs is first at most
`GOAL`; it may leave it again.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from numba_kernels import launch
from numba_kernels.bench import facts

GOAL = 0.2  # distance; that of the untrained generator is about 1
SEEDS, EPOCHS, BATCH = 5, 150, 50
DECAY = 0.9  # of the average, per epoch
RULES = {"rates": (5e-3, 5e-3), "smoothing": 0.1}  # equal rates, as a master has but one
OF_THE_GAME = "the game's own"  # optimizer, that of the first rows
# What each run trains with: (strategy, options of gan_trainer, or "turns").
RUNS = {
    "serial": ("serial", {}),
    "synchronous": ("synchronous", {}),
    "synchronous, simultaneous": ("synchronous", {"turns": "simultaneous"}),
    "hogwild": ("hogwild", {}),
    "downpour": ("downpour", {}),
    "downpour, synchronous": ("downpour", {"synchronous": True}),
    # Its own default is plain SGD, with which one seed of four did not come to the goal.
    "elastic averaging": ("elastic_averaging", {"optimizer": OF_THE_GAME, "every": 4}),
    "gradient energy matching": (
        "gradient_energy_matching",
        {"rates": (0.05, 0.05), "momentum": 0.5},
    ),
}


def compare(ranks: int) -> dict:
    """{"machine", ..., "rows"}: a row per strategy, over seeds."""
    if ranks < 2:
        raise ValueError(f"-n must be at least 2, a master and a worker, got {ranks}")
    about = facts()
    rows = [summary(name, one_strategy(name, ranks)) for name in RUNS]
    return about({"gan-strategies": 1}, rows)


def one_strategy(name: str, ranks: int) -> list[dict]:
    """The runs of one strategy, on its ranks."""
    n = 1 if name == "serial" else ranks
    env = dict.fromkeys(launch.THREAD_VARIABLES, "1")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "runs.json")
        code = f"from tutorial_dl.bench.gan_strategies import runs; runs({name!r}, {str(file)!r})"
        done = launch.run_ranks(n, ["-c", code], env=env, timeout=1800)
        if done.returncode:
            raise ValueError(f"{name} on {n} ranks ended with status {done.returncode}")
        return [run | {"ranks": n} for run in json.loads(file.read_text())]


def two_peaks(n: int = 2500, seed: int = 0):
    """Numbers, 40% around -1.5 and 60% around 1."""
    from tutorial_dl.data import Data, Dataset

    random = np.random.default_rng(seed)
    left = random.random(n) < 0.4
    x = np.where(left, random.normal(-1.5, 0.3, n), random.normal(1, 0.5, n)).astype(np.float32)
    kept = n // 5
    return Dataset("two peaks", Data.of(x[:-kept], None), Data.of(x[-kept:], None))


def runs(name: str, file: str, seeds: int = SEEDS, epochs: int = EPOCHS) -> None:
    """Train with every seed; rank 0 writes the distances. Every rank calls it."""
    from numba_kernels.team.team import Team

    team = Team()
    found = [one_run(team, name, seed, epochs) for seed in range(seeds)]
    if team.rank == 0:
        Path(file).write_text(json.dumps(found))


def one_run(team, name: str, seed: int, epochs: int) -> dict:
    """{"seed", "distances", "seconds"} of one training run."""
    from tutorial_dl.replica.gan import Rules
    from tutorial_dl.replica.one_dimensional_gan import OneDimensionalGan
    from tutorial_dl.training.gan import gan_trainer, optimizers_of

    strategy, options = RUNS[name]
    rules = {key: options[key] for key in ("turns",) if key in options}
    rest = {key: value for key, value in options.items() if key not in rules}
    dataset = two_peaks()
    game = OneDimensionalGan(32, Rules(**RULES, **rules), seed=seed)
    judged = Judged(game, dataset)
    if rest.get("optimizer") == OF_THE_GAME:
        rest["optimizer"] = optimizers_of(game)[0]
    trainer = gan_trainer(
        game, dataset, strategy, batch_size=BATCH, seed=seed, team=team, progress=False,
        watch=False, callbacks=[judged], **rest,
    )  # fmt: skip
    trainer.fit(epochs)
    return {"seed": seed, "distances": judged.distances, "seconds": sum(judged.seconds[-1:])}


class Judged:
    """After each epoch, on rank 0: the distance of samples of the generator's average over epochs.

    Hogwild's ranks have one copy of the weights, so only one of them may exchange these meanwhile.

    Attributes:
        distances: One per epoch.
        seconds: Of training, until then.
    """

    def __init__(self, game, dataset) -> None:
        self.game, self.distances, self.seconds = game, [], []
        self.at = (np.arange(1000) + 0.5) / 1000
        self.real, self.average = np.quantile(dataset.train.inputs, self.at), None

    def __call__(self, trainer, row: dict) -> None:
        if trainer.team.rank:
            return
        weights = self.game.generator.parameters
        own = weights.copy()
        decay = min(DECAY, len(self.distances) / (len(self.distances) + 5))
        self.average = own if self.average is None else decay * self.average + (1 - decay) * own
        weights[:] = self.average
        made = np.quantile(self.game.sample((), 2000), self.at)
        weights[:] = own
        self.distances.append(float(np.abs(made - self.real).mean()))
        self.seconds.append(row["seconds"] + (self.seconds[-1] if self.seconds else 0.0))


def reached(distances: list[float], goal: float = GOAL, width: int = 5) -> int | None:
    """The first epoch, from 1, at whose end the median of the last `width` is at most the goal."""
    for epoch in range(width, len(distances) + 1):
        if np.median(distances[epoch - width : epoch]) <= goal:
            return epoch
    return None


def summary(name: str, found: list[dict]) -> dict:
    """One row, over seeds: how many reached the goal and when, and the distance at the end."""
    when = [reached(run["distances"]) for run in found]
    there = [epoch for epoch in when if epoch is not None]
    final = [float(np.median(run["distances"][-20:])) for run in found]
    return {
        "what": name,
        "ranks": found[0]["ranks"],
        "goal": GOAL,
        "seeds": len(found),
        "reached": len(there),
        "epochs": float(np.mean(there)) if there else None,
        "epochs_spread": float(np.std(there)) if there else None,
        "distance": float(np.mean(final)),
        "distance_spread": float(np.std(final)),
        "distances": final,
        "seconds": float(np.mean([run["seconds"] for run in found])),
    }


def table_of(result: dict) -> str:
    """The rows as a table in Markdown."""
    lines = [f"{result['machine']}, load {result['load']} before", ""]
    lines.append(
        f"| strategy | ranks | reach {GOAL} | epochs until then | distance at the end | s per run |"
    )
    lines.append("|---|---|---|---|---|---|")
    for one in result["rows"]:
        epochs = (
            "" if one["epochs"] is None else f"{one['epochs']:.0f} ± {one['epochs_spread']:.0f}"
        )
        lines.append(
            f"| {one['what']} | {one['ranks']} | {one['reached']} of {one['seeds']} | {epochs} | "
            f"{one['distance']:.3f} ± {one['distance_spread']:.3f} | {one['seconds']:.1f} |"
        )
    return "\n".join(lines)
