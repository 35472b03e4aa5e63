"""Bench: overlapped reductions of both players of a GAN, between two nodes.

A round of a simultaneous game of one-dimensional samples, with many weights: the generator's
reduction overlapped with the discriminator's gradient, against one after the other. With few
samples a round is mostly reduction, with more of them mostly gradient.
numba_kernels/bench/two_nodes.py makes the nodes: of network namespaces where that is possible.
"""

import os

import numpy as np

from numba_kernels.bench.rows import row
from numba_kernels.bench.step import moved
from numba_kernels.bench.timing import copy_bandwidth, interleaved
from numba_kernels.bench.two_nodes import LABEL, PRETENDED
from numba_kernels.optimizers import Adam
from numba_kernels.team.team import Team
from tutorial_dl.bench.gans import round_of
from tutorial_dl.data.dataset import Data, Dataset
from tutorial_dl.replica.consistency import check_same_weights
from tutorial_dl.replica.gan import Rules
from tutorial_dl.replica.one_dimensional_gan import OneDimensionalGan
from tutorial_dl.training.gan import gan_trainer

HIDDEN, SAMPLES = 300_000, (2, 16)  # terms of each player's sum; samples per rank


def rows(seconds: float, full: bool) -> list[dict]:
    """The rows of one start."""
    team = Team()
    bandwidth, each = copy_bandwidth(team.barrier), seconds / len(SAMPLES)
    return [overlapped(team, each, bandwidth, samples) for samples in SAMPLES]


def overlapped(team: Team, seconds: float, bandwidth: float, samples: int) -> dict:
    """The row of overlapped reductions; both ways must end with the same weights."""
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    dataset = Dataset("normal", Data.of(x, None), None)
    calls, trainers = [], []
    for overlap in (True, False):
        game = OneDimensionalGan(HIDDEN, Rules(turns="simultaneous", rates=(1e-5, 2e-5)))
        trainer = gan_trainer(
            game, dataset, "synchronous", batch_size=samples * team.size, team=team,
            overlap=overlap, progress=False, watch=False,
        )  # fmt: skip
        trainers.append(trainer)
        calls.append(round_of(trainer))
    for call in calls:
        call()
    for one, other in zip(*(trainer.players for trainer in trainers), strict=True):
        np.testing.assert_allclose(  # a round each, from the same weights
            one.replica.parameters, other.replica.parameters, rtol=1e-6, atol=1e-6
        )
    times = interleaved(calls, team.barrier, seconds).T
    for player in (p for trainer in trainers for p in trainer.players):
        check_same_weights(team, player.replica)
    n = sum(side.parameters.size for side in trainers[0].replica.game.sides)
    key = (
        f"GAN round, {samples} samples per rank, {os.environ.get(LABEL, PRETENDED)}",
        team.size,
        {"parameters": n},
        "overlapped",
        times[0],
    )
    return row(*key, "one after the other", times[1], moved(team.size, n, Adam()), bandwidth)
