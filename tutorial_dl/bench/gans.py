"""Bench: steps of GANs on p ranks, each rank a node of its own, and showers per second.

- A round of a simultaneous game of one-dimensional samples, with many weights and few samples: the
  generator's reduction overlapped with the discriminator's gradient, against one after the other.
- A round of the GAN of 25^3 showers, both players in turn, against its two gradients alone; the
  row has the largest memory of a rank, too.
- Showers that one core makes: by the generator, against the simulation that it learns from.
"""

import os
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
from tutorial_dl.data.dataset import Data, Dataset
from tutorial_dl.models.shower_gans import shower_gan
from tutorial_dl.replica.consistency import check_same_weights
from tutorial_dl.replica.gan import Rules
from tutorial_dl.replica.one_dimensional_gan import OneDimensionalGan
from tutorial_dl.runtime.at_once import AtOnce
from tutorial_dl.training.gan import gan_trainer

HIDDEN, SAMPLES = 300_000, 2  # terms of each player's sum; samples per rank
FULL_SAMPLES = 4  # of the 25^3 showers, per rank
MADE = 64  # showers per call of a generator
SHARES = {"overlap": 0.4, "full": 0.4, "showers": 0.2}  # of the time


def rows(seconds: float, full: bool) -> list[dict]:
    """The rows of one start."""
    os.environ["NUMBA_KERNELS_NODE"] = "1"  # read when a team is made: every rank is a node
    team = Team()
    bandwidth = copy_bandwidth(team.barrier)
    found = [overlapped(team, seconds * SHARES["overlap"], bandwidth)]
    found.append(full_size(team, seconds * SHARES["full"], bandwidth))
    return found + made(team, seconds * SHARES["showers"], bandwidth)


def overlapped(team: Team, seconds: float, bandwidth: float) -> dict:
    """The row of overlapped reductions; both ways must end with the same weights."""
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    dataset = Dataset("normal", Data.of(x, None), None)
    calls, trainers = [], []
    for overlap in (True, False):
        game = OneDimensionalGan(HIDDEN, Rules(turns="simultaneous", rates=(1e-5, 2e-5)))
        trainer = gan_trainer(
            game, dataset, "synchronous", batch_size=SAMPLES * team.size, team=team,
            overlap=overlap, progress=False, watch=False,
        )  # fmt: skip
        trainers.append(trainer)
        calls.append(round_of(trainer))
    times = interleaved(calls, team.barrier, seconds).T
    for player in (p for trainer in trainers for p in trainer.players):
        check_same_weights(team, player.replica)
    n = sum(side.parameters.size for side in trainers[0].replica.game.sides)
    key = ("GAN round, two teams", team.size, {"parameters": n}, "overlapped", times[0])
    return row(*key, "one after the other", times[1], moved(team.size, n, Adam()), bandwidth)


def round_of(trainer) -> Callable[[], object]:
    """A function that does one round of the trainer with the same batch again and again."""
    run, loop = trainer.run, trainer.loop
    run.agree(loop)
    batch = next(iter(run.batches.epoch(0, 0)))
    rounds = AtOnce(run.players, run.overlap) if run.at_once else None
    return lambda: loop.round(batch, rounds)


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
    parts = [(p.replica, p.part(batch, trainer.run)) for p in trainer.players]

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
