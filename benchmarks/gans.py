"""Bench: rounds of the GAN of 25^3 showers, and showers per second.

- A round of the GAN of 25^3 showers, both players in turn, against its two gradients alone; the
  row has the largest memory of a rank, too.
- Showers that one core makes: by the generator, against the simulation that it learns from.
"""

import resource
from collections.abc import Callable

import numpy as np

from numba_kernels.bench.rows import row
from numba_kernels.bench.step import moved
from numba_kernels.bench.timing import copy_bandwidth, interleaved
from numba_kernels.optimizers import Adam
from numba_kernels.team.team import Team
from tutorial_dl import data
from tutorial_dl.data import showers
from tutorial_dl.data.calorimeter import GRANULAR, SMALL
from tutorial_dl.models.shower_gans import shower_gan
from tutorial_dl.training.gan import gan_trainer

FULL_SAMPLES = 4  # of the 25^3 showers, per rank
MADE = 64  # showers per call of a generator
SHARES = {"full": 0.7, "showers": 0.3}  # of the time


def rows(seconds: float, full: bool) -> list[dict]:
    """The rows of one start."""
    team = Team()
    bandwidth = copy_bandwidth(team.barrier)
    found = [full_size(team, seconds * SHARES["full"], bandwidth)]
    return found + made(team, seconds * SHARES["showers"], bandwidth)


def round_of(trainer) -> Callable[[], object]:
    """A function that does one round of the trainer with the same batch again and again."""
    run, loop = trainer.run, trainer.loop
    run.agree(loop)
    batch = next(iter(run.batches.epoch(0, 0)))
    return lambda: loop.round(batch)


def full_size(team: Team, seconds: float, bandwidth: float) -> dict:
    """The row of the GAN of 25^3 showers."""
    dataset = data.showers.showers(8 * FULL_SAMPLES * team.size)
    game = shower_gan(dataset)
    trainer = gan_trainer(
        game, dataset, "synchronous", batch_size=FULL_SAMPLES * team.size, team=team,
        progress=False, watch=False,
    )  # fmt: skip
    step = round_of(trainer)
    batch = next(iter(trainer.run.batches.epoch(0, 0)))
    parts = [(p.replica, p.select(batch, trainer.run)) for p in trainer.players]

    def gradients():
        for replica, part in parts:
            replica.compute_gradient(part)

    times = interleaved([step, gradients], team.barrier, seconds).T
    n = sum(side.parameters.size for side in game.sides)
    key = ("GAN round, 25^3 showers", team.size, {"parameters": n}, "adam, in turn", times[0])
    found = row(*key, "both gradients alone", times[1], moved(team.size, n, Adam()), bandwidth)
    samples = FULL_SAMPLES * team.size
    return found | {"samples": samples, "peak_megabytes": peak_megabytes()}


def peak_megabytes() -> float:
    """The most memory that this process has had, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def made(team: Team, seconds: float, bandwidth: float) -> list[dict]:
    """The rows of showers per second: every rank makes its own, on its core."""
    found = []
    for calorimeter in (SMALL, GRANULAR):
        dataset = showers.showers(64, calorimeter=calorimeter)
        game = shower_gan(dataset)
        energies = np.linspace(10, 500, MADE).astype(np.float32)

        def generate(game=game, energies=energies):
            return game.sample(energies, MADE)

        def simulate(calorimeter=calorimeter):
            return showers.simulate(range(MADE), 1, calorimeter)

        times = interleaved([generate, simulate], team.barrier, seconds / 2).T / MADE
        size = {"bytes": 4 * int(np.prod(calorimeter.shape))}
        what = f"one shower, {calorimeter.layers}^3"
        key = (what, team.size, size, "generator", times[0])
        one = row(*key, "simulation", times[1], size["bytes"] * team.size, bandwidth)
        ours, theirs = (float(1 / np.median(t)) for t in times)
        found.append(one | {"showers_per_second": ours, "peer_showers_per_second": theirs})
    return found
