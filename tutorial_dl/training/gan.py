"""`gan_trainer`: a Trainer for a Game, by any strategy.

    game = OneDimensionalGan()
    trainer = gan_trainer(game, dataset, "synchronous", batch_size=64)
    trainer.fit(epochs=20)
    game.sample(y, 1000)                            # with the trainer's Average: averaged weights

Strategies in step ("synchronous", "serial", "hogwild") train two players in turn, each with its own
optimizer and learning rate. A strategy with a master trains both at once as one model with one
optimizer (runtime/game.py: Together).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from numba_kernels import optimizers
from numba_kernels.optimizers.base import check_range

from .. import strategies
from ..config import WITH_MASTER
from ..data import Batches, Dataset
from ..replica.gan import Game, numbered
from ..runtime.callback import Callback, callbacks_of
from ..runtime.game import GENERATOR, Together, players
from ..runtime.in_step import InStepLoop
from ..runtime.run import Run
from .gan_watch import Watch
from .trainer import Trainer

BEGUN_AND_ENDED = {"serial", "synchronous"}  # strategies whose step has two parts


class Average(Callback):
    """The exponential moving average of the generator's weights, from the first step on.

    After each step of the generator, average <- decay average + (1 - decay) weights. Until so many
    steps were made, decay is (1 + steps) / (10 + steps) if that is less, so that the initial
    weights are soon forgotten.

    Attributes:
        weights: The average, (n,) of the generator's dtype; None before training.
    """

    def __init__(self, game: Game) -> None:
        self.game, self.weights, self.steps = game, None, 0

    def on_fit_begin(self, trainer) -> None:
        if self.weights is None:
            self.weights = self.game.generator.parameters.copy()

    def on_step_end(self, trainer, loss: float, samples: int) -> None:
        if not samples:  # a round in which only the discriminator made a step
            return
        self.steps += 1
        decay = min(self.game.rules.average, (1 + self.steps) / (10 + self.steps))
        w = self.game.generator.parameters
        self.weights += w.dtype.type(1 - decay) * (w - self.weights)

    def save(self) -> tuple[dict, dict]:
        vectors = {} if self.weights is None else {"weights": self.weights}
        return {"steps": self.steps}, vectors

    def restore(self, values: dict, vectors: dict) -> None:
        self.steps, self.weights = values["steps"], vectors.get("weights")
        if self.weights is not None:
            self.weights = np.array(self.weights)

    def swapped(self) -> Swapped:
        """`with average.swapped():` the generator has the averaged weights."""
        return Swapped(self.game.generator, self.weights)


class Swapped:
    def __init__(self, replica, weights: np.ndarray | None) -> None:
        self.replica, self.weights = replica, weights

    def __enter__(self) -> None:
        self.own = self.replica.parameters.copy()
        if self.weights is not None:
            self.replica.parameters[:] = self.weights

    def __exit__(self, *error) -> None:
        self.replica.parameters[:] = self.own


def optimizers_of(game: Game, optimizer: Any = None, rates: Sequence[float] | None = None) -> list:
    """The optimizers of generator and discriminator: those asked for, or those of the game."""
    rules = game.rules
    given = optimizers.get(rules.optimizer if optimizer is None else optimizer)
    if optimizer is None and hasattr(given, "beta_1"):
        given = replace(given, beta_1=rules.momentum)
    asked = rules.rates if rates is None else rates
    return [given.at_rate(check_range("learning_rate", float(rate)) or rate) for rate in asked]


def gan_trainer(
    game: Game,
    dataset: Dataset,
    strategy: str = "synchronous",
    optimizer: Any = None,
    rates: Sequence[float] | None = None,
    batch_size: int = 32,
    seed: int = 0,
    team: Any = None,
    callbacks: Sequence[Any] = (),
    progress: bool = True,
    checkpoint: Any = None,
    checkpoint_every: int | None = None,
    clip_norm: float | None = None,
    timeline: Any = None,
    watch: bool = True,
    average: Average | None = None,
    shuffle: bool = True,
    discriminator: Any = None,
    check_every: int = 200,
    **options: Any,
) -> Trainer:
    """Make a Trainer for the game. Collective.

    Args:
        game: Its two players.
        dataset: Samples x, and conditions y if the game has some, in memory.
        strategy: The name of a strategy, for both players.
        discriminator: The name of another strategy in step for the discriminator; None: the same.
        optimizer: Name of an optimizer, or one; None: that of the game's rules.
        rates: Learning rates of generator and discriminator; None: those of the rules. A strategy
            with a master uses the first.
        average: An `Average` of the caller's; None: one is made. It is the first of the
            trainer's callbacks, except with a master, which has none.
        watch: Whether to look out for a collapse and for dead players (gan_watch.py).
        options: Of the strategy.

    The other arguments are those of `Trainer`.
    """
    if "overlap" in options:
        raise TypeError(
            "overlap saved no time and has gone: leave it out (the weights are the same)"
        )
    dataset.check_finite()
    data = numbered(dataset)
    both = optimizers_of(game, optimizer, rates)
    common = {"batch_size": batch_size, "seed": seed, "progress": progress, "timeline": timeline}
    if strategy in WITH_MASTER:
        if discriminator not in (None, strategy):
            raise ValueError(
                f"with strategy {strategy!r}, which has a master, both players train by one rule, "
                f"got {discriminator!r} for the discriminator"
            )
        rule = strategies.get(strategy, team, **options)
        if optimizer is None and rule.default_optimizer != "adam":  # it needs another kind
            both = optimizers_of(game, rule.default_optimizer, rates)
        return Trainer(
            Together(game, seed), data, rule, both[0], team=team,
            callbacks=[*([Watch(game)] if watch else []), *callbacks_of(callbacks)],
            checkpoint=checkpoint, checkpoint_every=checkpoint_every, clip_norm=clip_norm,
            shuffle=shuffle, check_every=check_every, **common,
        )  # fmt: skip
    names = strategy, discriminator or strategy
    at_once = game.rules.turns == "simultaneous"
    if at_once and not {*names} <= BEGUN_AND_ENDED:
        raise ValueError(
            f"simultaneous turns need strategies {' or '.join(sorted(BEGUN_AND_ENDED))}, got "
            f"{' and '.join(dict.fromkeys(names))}"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    rules = [strategies.get(names[0], team, **options)]
    team = rules[0].team
    rules.append(strategies.get(names[1], team, **options))
    average = Average(game) if average is None else average
    batches = Batches(
        data.train, batch_size * rules[0].updates_a_step, seed, *InStepLoop.shard(team), shuffle
    )
    run = Run(
        players(game, rules, both), data, batches, InStepLoop.layout(rules[0], team), team,
        callbacks=[average, *([Watch(game)] if watch else []), *callbacks_of(callbacks)],
        timeline=timeline, clip_norm=clip_norm, check_every=check_every,
        at_once=at_once,
    )  # fmt: skip
    loop = InStepLoop(run)
    if checkpoint is not None:
        run.saving = loop.saving(checkpoint, checkpoint_every, 3)
    return Trainer.of(loop, progress)


def average_of(trainer) -> Average | None:
    """The trainer's Average, or None (with a master)."""
    return next((one for one in trainer.callbacks if isinstance(one, Average)), None)


__all__ = ["GENERATOR", "Average", "average_of", "gan_trainer", "optimizers_of"]
