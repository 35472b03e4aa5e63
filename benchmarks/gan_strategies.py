"""`python -m benchmarks gan-strategies`: the same GAN by every strategy, with 5 seeds.

The data and the judgement are those of notebook 21 (tutorial_dl/course/two_peaks.py).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from numba_kernels import launch
from numba_kernels.bench import facts
from tutorial_dl.course.two_peaks import GOAL, Judged, reached, two_peaks

SEEDS, EPOCHS, BATCH = 5, 150, 50
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
        code = f"from benchmarks.gan_strategies import runs; runs({name!r}, {str(file)!r})"
        done = launch.run_ranks(n, ["-c", code], env=env, timeout=1800)
        if done.returncode:
            raise ValueError(f"{name} on {n} ranks ended with status {done.returncode}")
        return [run | {"ranks": n} for run in json.loads(file.read_text())]


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
    from tutorial_dl.training.gan import gan_trainer
    from tutorial_dl.training.optimizer_choice import optimizers_of

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
