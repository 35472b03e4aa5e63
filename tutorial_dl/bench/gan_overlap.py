"""Bench: overlapped reductions of both players of a GAN, on one machine and between two nodes.

A round of a simultaneous game of one-dimensional samples, with many weights: the generator's
reduction overlapped with the discriminator's gradient, against one after the other. With few
samples a round is mostly reduction, with more of them mostly gradient.

Each row has the median of the rounds' ratios (overlapped over one after the other), and an interval
that has it with a probability of 95%: single rounds differ by more than the two ways do.
"""

import os
from unittest import mock

import numpy as np

from numba_kernels.bench.rows import row
from numba_kernels.bench.step import moved
from numba_kernels.bench.timing import copy_bandwidth, interleaved, keep_memory
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
ROUNDS = 40  # of turns, at most
HERE, NODE = "one machine", "NUMBA_KERNELS_NODE"


def rows(seconds: float, full: bool) -> list[dict]:
    """The rows of one start: of the nodes it is on, or else of one machine as one node and two."""
    keep_memory()  # or clearing pages, for arrays of each round, takes half of the gradient's time
    team, name = Team(), os.environ.get(LABEL, HERE)
    bandwidth, each = copy_bandwidth(team.barrier), seconds / len(SAMPLES)
    if name != HERE:
        return [overlapped(team, name, each, bandwidth, samples) for samples in SAMPLES]
    found = [overlapped(team, name, each / 2, bandwidth, samples) for samples in SAMPLES]
    # It is read whenever a team is made, also by the trainers of these cases
    with mock.patch.dict(os.environ, {NODE: str(team.size // 2)}), Team() as two:
        return found + [overlapped(two, PRETENDED, each / 2, bandwidth, n) for n in SAMPLES]


def interval(values: np.ndarray) -> tuple[float, float]:
    """Two of the values between which their median lies with a probability of about 95%.

    The number of values below the median has a binomial distribution, with spread sqrt(n) / 2. (Of
    fewer than six values, even the first and the last have it with less.)
    """
    ordered = np.sort(values)
    first = max(0, int(ordered.size / 2 - 0.98 * np.sqrt(ordered.size)))
    return float(ordered[first]), float(ordered[-1 - first])


def overlapped(team: Team, name: str, seconds: float, bandwidth: float, samples: int) -> dict:
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
        nodes = 1 if name == HERE else 2
        assert all(len(player.team.nodes) == nodes for player in trainer.players), name
        trainers.append(trainer)
        calls.append(round_of(trainer))
    for call in calls:
        call()
    for one, other in zip(*(trainer.players for trainer in trainers), strict=True):
        np.testing.assert_array_equal(one.replica.parameters, other.replica.parameters)
    times = interleaved(calls, team.barrier, seconds, ROUNDS).T
    for player in (p for trainer in trainers for p in trainer.players):
        check_same_weights(team, player.replica)
    n = sum(side.parameters.size for side in trainers[0].replica.game.sides)
    key = (
        f"GAN round, {samples} samples per rank, {name}",
        team.size,
        {"parameters": n},
        "overlapped",
        times[0],
    )
    found = row(*key, "one after the other", times[1], moved(team.size, n, Adam()), bandwidth)
    ratios = times[0] / times[1]
    low, high = interval(ratios)
    return found | {
        "median_of_ratios": float(np.median(ratios)), "median_from": low, "median_to": high,
        "rounds": ratios.size,
    }  # fmt: skip
