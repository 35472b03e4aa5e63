"""A GAN of numbers with two peaks, and how runs of it are judged.

A run is judged after each epoch by the distance between its samples and the data (Wasserstein-1),
with a moving average of the generator's weights over epochs, which every strategy gets alike. It
reaches the goal when the median of 5 epochs is first at most `GOAL`; it may leave it again.
"""

import numpy as np

from ..data import Data, Dataset

GOAL = 0.2  # distance; that of the untrained generator is about 1
DECAY = 0.9  # of the average, per epoch


def two_peaks(n: int = 2500, seed: int = 0) -> Dataset:
    """`n` numbers, 40% around -1.5 and 60% around 1; a fifth of them is for validation."""
    random = np.random.default_rng(seed)
    left = random.random(n) < 0.4
    x = np.where(left, random.normal(-1.5, 0.3, n), random.normal(1, 0.5, n)).astype(np.float32)
    kept = n // 5
    return Dataset("two peaks", Data.of(x[:-kept], None), Data.of(x[-kept:], None))


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
