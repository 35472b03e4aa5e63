"""`Game`: a generator and a discriminator, each a Replica with its own two flat vectors.

The discriminator D learns to tell samples x of the data from samples G(z, y) of the generator, and
G learns to be taken for the data (Goodfellow et al., arXiv 1406.2661). With the scores D(.), real
numbers, and l(t, d) = t softplus(-d) + (1 - t) softplus(d), the cross-entropy of the label t:

    non-saturating    D:  mean of l(t_x, D(x)) + l(0, D(G(z)))      G:  mean of softplus(-D(G(z)))
    Wasserstein       D:  mean of D(G(z)) - D(x) + c (|grad D(u)| - 1)^2     G:  mean of -D(G(z))

(Arjovsky et al., arXiv 1701.07875; gradient penalty: Gulrajani et al., arXiv 1704.00028, with
u = e x + (1 - e) G(z) and e uniform for each pair.) The label t_x is 1 - smoothing, and 0 for a
share `flips` of the samples (Salimans et al., arXiv 1606.03498).

Every loss is a mean over samples. The noise z, the labels' flips and e depend on (seed, epoch,
index of the sample in the data) alone. So p ranks do what one process does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from numba_kernels.jit.compile import compiled
from tutorial_dl.data.counted_random import GOLDEN, SECOND, mixed, normal, uniform
from tutorial_dl.data.dataset import Batch, Data, Dataset
from tutorial_dl.replica.base import Replica

LOSSES = ("non_saturating", "wasserstein")
TURNS = ("alternating", "simultaneous")
UNIFORMS = 2  # per sample: for flips, and for the place of the gradient penalty
ALWAYS = 2**62  # stands for the epoch of validation, whose noise is the same after every epoch
EMPTY: Any = ()


@dataclass(frozen=True)
class Rules:
    """How the two players play.

    Args:
        loss: "non_saturating" or "wasserstein".
        discriminator_steps: Steps of the discriminator per step of the generator (k).
        turns: "alternating": the discriminator learns from what the generator makes after its step
            of the round. "simultaneous": both gradients are taken at the weights before the round,
            and the players circle around each other more (Mescheder et al., arXiv 1801.04406).
        smoothing: Real samples have the label 1 - smoothing.
        flips: Share of the real samples whose label is 0 instead.
        penalty: Weight c of the gradient penalty; Wasserstein only.
        auxiliary: Output of the discriminator -> weight of its loss in both players' losses.
        average: Decay of the exponential moving average of the generator's weights per step of
            the generator (Yazici et al., arXiv 1806.04498).
        optimizer: Of both players, if none is asked for.
        rates: Learning rates of generator and discriminator: the second may well be larger (two
            time scales: Heusel et al., arXiv 1706.08500).
        momentum: beta_1 of an optimizer of Adam's kind, if none is asked for.
    """

    loss: str = "non_saturating"
    discriminator_steps: int = 1
    turns: str = "alternating"
    smoothing: float = 0.0
    flips: float = 0.0
    penalty: float = 10.0
    auxiliary: dict[str, float] = field(default_factory=dict)
    average: float = 0.99
    optimizer: str = "adam"
    rates: tuple[float, float] = (1e-4, 2e-4)
    momentum: float = 0.5

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"loss '{self.loss}': expected {' or '.join(LOSSES)}")
        if self.turns not in TURNS:
            raise ValueError(f"turns '{self.turns}': expected {' or '.join(TURNS)}")
        if self.discriminator_steps < 1:
            raise ValueError(
                f"discriminator_steps must be at least 1, got {self.discriminator_steps}"
            )
        for name in ("smoothing", "flips"):
            if not 0 <= getattr(self, name) < 0.5:
                raise ValueError(f"{name} must be from 0 to below 0.5, got {getattr(self, name)}")
            if self.loss == "wasserstein" and getattr(self, name):
                raise ValueError(
                    f"{name} is for the non_saturating loss; 'wasserstein' has no labels"
                )
        if not self.penalty >= 0:
            raise ValueError(f"penalty must be at least 0, got {self.penalty}")
        if not 0 <= self.average < 1:
            raise ValueError(f"average must be from 0 to below 1, got {self.average}")


class Round(NamedTuple):
    """What both players need of s samples.

    x (s, ...): samples of the data; y: their conditions (classes, energies), or (); noise (s, k);
    uniforms (s, UNIFORMS).
    """

    x: Any
    y: Any
    noise: np.ndarray
    uniforms: np.ndarray

    def __len__(self) -> int:  # of samples
        return len(self.noise)


@compiled
def draw(start, indices, noise, uniforms):
    """Fill noise (s, k) with normal, uniforms (s, m) with uniform numbers; row i by indices[i]."""
    state = np.empty(1, np.uint64)
    for i in range(indices.size):
        state[0] = mixed(start + np.uint64(indices[i]) * SECOND)
        for j in range(uniforms.shape[1]):
            uniforms[i, j] = uniform(state)
        for j in range(noise.shape[1]):
            noise[i, j] = normal(state)


def draws(seed: int, epoch: int, indices: np.ndarray, size: int, dtype: Any = np.float32) -> tuple:
    """(noise (s, size), uniforms (s, UNIFORMS)) of the samples with these indices (s,)."""
    with np.errstate(over="ignore"):
        start = np.uint64(mixed(np.uint64(seed) + GOLDEN)) + np.uint64(epoch) * GOLDEN
    noise = np.empty((len(indices), size), dtype)
    uniforms = np.empty((len(indices), UNIFORMS), dtype)
    draw(np.uint64(start), np.asarray(indices, np.int64), noise, uniforms)
    return noise, uniforms


def in_memory(dataset: Dataset) -> Dataset:
    """The dataset, with what lies in files read."""
    parts = (dataset.train, dataset.validation)
    read = (Data(*one.take(slice(0, len(one)))) if hasattr(one, "take") else one for one in parts)
    return Dataset(dataset.name, *read, dataset.classes)


def numbered(dataset: Dataset) -> Dataset:
    """The dataset with each sample's index among its inputs: (x, index).

    Validation samples are counted on from the training samples. Data in files are read.
    """

    def with_numbers(data: Any, first: int) -> Data:
        if not hasattr(data, "take"):
            raise ValueError(
                f"dataset '{dataset.name}': a GAN needs data of known length, no stream"
            )
        x, y, *weights = data.take(slice(0, len(data)))
        if weights or isinstance(x, tuple | dict):
            raise ValueError(
                f"dataset '{dataset.name}': a GAN takes one array of samples, without weights"
            )
        return Data((x, np.arange(first, first + len(data))), y)

    kept = dataset.validation
    train = with_numbers(dataset.train, 0)
    return Dataset(
        dataset.name,
        train,
        None if kept is None else with_numbers(kept, len(train)),
        dataset.classes,
    )


class Side(Replica):
    """One player's replica. A batch is (Round, ()); `game` has the other player.

    `last` has figures of the latest gradient, by name, of this rank's samples.
    """

    game: Any
    last: dict[str, float]

    def measure(self, batches: Iterable[Batch]) -> dict[str, float]:
        """ "loss", "samples" and what else `losses` has, summed over samples."""
        sums: dict[str, float] = {"samples": 0}
        for one, *_ in batches:
            for name, value in (self.losses(one) if len(one) else {}).items():
                sums[name] = sums.get(name, 0.0) + value * len(one)
            sums["samples"] += len(one)
        return sums

    def losses(self, one: Round) -> dict[str, float]:
        """The loss and what else is of interest, means over the samples of a Round."""
        raise NotImplementedError


class Game:
    """Base class: two Sides that know each other.

    Attributes:
        generator, discriminator: The Sides.
        rules: How they play.
        noise: The number k of normal numbers that make a sample.
        conditional: Whether a sample depends on its condition y.
        name: Of the model.
    """

    generator: Side
    discriminator: Side
    rules: Rules
    noise: int
    conditional = False
    name = "gan"

    def round(self, batch: Batch, seed: int, epoch: int) -> Round:
        """The Round of a batch ((x, index), y) of numbered data."""
        (x, indices), y, *_ = batch
        return Round(x, y, *draws(seed, epoch, indices, self.noise, self.generator.dtype))

    def generate(self, noise: np.ndarray, y: Any = EMPTY) -> np.ndarray:
        """Samples (s, ...) from noise (s, k) and their conditions, by the generator's weights."""
        raise NotImplementedError

    def sample(self, y: Any, n: int, seed: int = 0, batch_size: int = 256) -> np.ndarray:
        """`n` samples with the conditions y (n, ...); sample i depends on (seed, i) alone."""
        found = []
        for first in range(0, n, batch_size):
            part = slice(first, min(n, first + batch_size))
            indices = np.arange(n)[part]
            noise, _ = draws(seed, ALWAYS + 1, indices, self.noise, self.generator.dtype)
            found.append(self.generate(noise, y[part] if len(y) else EMPTY))
        return np.concatenate(found)

    @property
    def sides(self) -> Sequence[Side]:
        return self.generator, self.discriminator
