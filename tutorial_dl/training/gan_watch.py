"""`Watch`: looks out for what goes wrong in a game: a collapse, a dead player."""

from __future__ import annotations

import sys

import numpy as np

from ..replica.gan import ALWAYS, Game
from ..runtime.callback import Callback
from ..runtime.game import DISCRIMINATOR, GENERATOR

SAMPLES = 256
COLLAPSED = 0.1  # of the data's spread
SURE = 1e-3  # a discriminator's loss below which it is never in doubt
LOST = 10.0  # a generator's loss that goes with it


class Watch(Callback):
    """After each epoch, compares generated samples with the data, and the players' losses.

    It adds the column `spread` to the history: how much generated samples of one condition (class,
    energy) differ, over how much samples of the data do (`spread_of`). What it finds, rank 0 says
    once on stderr, with step and remedy.

    Attributes:
        found: What was found so far: "collapse", "generator", "discriminator".
    """

    def __init__(self, game: Game, write=None) -> None:
        self.game, self.found = game, []
        self.write = write or (lambda words: print(words, file=sys.stderr, flush=True))

    def on_epoch_end(self, trainer, row: dict) -> None:
        (x, _), y, *_ = trainer.dataset.train.take(slice(0, SAMPLES))
        made = self.game.sample(y, len(x), trainer.batches.seed)
        of = y if self.game.conditional else np.empty(0)
        spread = spread_of(made, of)
        if not np.isfinite(spread):
            return  # the loss will say so
        row["spread"] = float(spread / max(spread_of(x, of), 1e-30))
        rates = [player.strategy.optimizer.learning_rate for player in trainer.players]
        rates *= 2 // len(rates)  # (with a master, one trains both)
        if row["spread"] < COLLAPSED:
            self._say(
                trainer, "collapse",
                f"mode collapse: generated samples{' of a class' * _classes(of)} spread "
                f"{row['spread']:.2g} times as much as the data; use a smaller learning rate of "
                f"the generator (now {rates[0]:g}), more discriminator steps, or the wasserstein "
                "loss",
            )  # fmt: skip
        one = self.game.round(((x, np.arange(len(x))), y), trainer.batches.seed, ALWAYS)
        if self.game.rules.loss == "non_saturating":
            mine, its = (_of_the_game(side.losses(one)) for side in self.game.sides)
            its -= _least(self.game.rules)
            if its < SURE and mine > LOST:
                self._say(
                    trainer, "generator",
                    f"the generator is dead: the discriminator's loss is {its:.2g} above its least "
                    "value, so it is never deceived; use a smaller learning rate of the "
                    f"discriminator (now {rates[1]:g}), smoothing, flips, spectral normalisation, "
                    "or the wasserstein loss",
                )  # fmt: skip
        names = GENERATOR, DISCRIMINATOR
        for side, name, rate in zip(self.game.sides, names, rates, strict=True):
            side.compute_gradient((one, ()))  # (a step fills `gradient` anew)
            if not side.gradient.any():
                self._say(
                    trainer, name,
                    f"the {name} is dead: its gradient is 0; use a smaller learning rate "
                    f"(now {rate:g}), or leaky_relu in place of relu",
                )  # fmt: skip

    def _say(self, trainer, what: str, words: str) -> None:
        if what not in self.found:
            self.found.append(what)
            if trainer.team.rank == 0:
                self.write(f"note: step {trainer.steps}: {words}")

    def save(self) -> tuple[dict, dict]:
        return {"found": self.found}, {}

    def restore(self, values: dict, vectors: dict) -> None:
        self.found = list(values["found"])


def _classes(y: np.ndarray) -> bool:
    return len(y) > 0 and y.dtype.kind in "iu"


def spread_of(samples: np.ndarray, y: np.ndarray) -> float:
    """How much samples (n, ...) of one condition (n, ...), or of none (0,), differ; in their unit.

    Without conditions it is the standard deviation among samples. A generator may have collapsed
    for each condition, and its samples still differ, since classes do. So neighbours in the order
    of conditions are compared, of classes those of the same class: the root of half their mean
    squared difference is the standard deviation of one condition. It is taken of each number of a
    sample; the mean over these is returned.
    """
    x = np.asarray(samples, np.float64)
    if not len(y):
        return float(np.std(x, axis=0).mean())
    y = np.ravel(y)[:: np.size(y) // len(y)]  # of several numbers, the first one
    order = np.argsort(y, kind="stable")
    apart = np.diff(x[order], axis=0)
    if _classes(y) and (same := np.diff(y[order]) == 0).any():
        apart = apart[same]
    return float(np.sqrt(np.mean(apart**2, axis=0) / 2).mean())


def _of_the_game(losses: dict[str, float]) -> float:
    """A player's loss without the auxiliary ones."""
    return 2 * losses["loss"] - sum(losses.values())


def _least(rules) -> float:
    """The least loss of a discriminator whose real samples have labels of mean p: H(p)."""
    p = (1 - rules.flips) * (1 - rules.smoothing)
    return -p * np.log(p) - ((1 - p) * np.log(1 - p) if p < 1 else 0.0)
