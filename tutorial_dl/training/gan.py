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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from .. import strategies
from ..config import WITH_MASTER
from ..data import Dataset
from ..replica.gan import Game
from ..runtime.callback import Callback, callbacks_of
from .gan_watch import Watch
from .optimizer_choice import optimizers_of
from .plan import Plan
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

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """`with average.swapped():` the generator has the averaged weights, if there are any."""
        parameters = self.game.generator.parameters
        own = parameters.copy()
        if self.weights is not None:
            parameters[:] = self.weights
        try:
            yield
        finally:
            parameters[:] = own


def samples_of(game: Game, average: Average | None, asked, count: int, seed: int) -> np.ndarray:
    """Samples of the averaged generator; without an average, of the one in training."""
    with nullcontext() if average is None else average.swapped():
        return game.sample(asked, count, seed)


def gan_trainer(
    game: Game,
    dataset: Dataset,
    strategy: str = "synchronous",
    optimizer: Any = None,
    rates: Sequence[float] | None = None,
    *,
    team: Any = None,
    discriminator: str | None = None,
    average: Average | None = None,
    watch: bool = True,
    callbacks: Sequence[Any] = (),
    **others: Any,
) -> Trainer:
    """Make a Trainer for the game. Collective.

    Args:
        game: Its two players.
        dataset: Samples x, and conditions y if the game has some, in memory.
        strategy: The name of a strategy, for both players.
        optimizer: Name of an optimizer, or one; None: that of the game's rules.
        rates: Learning rates of generator and discriminator; None: those of the rules. A strategy
            with a master uses the first.
        discriminator: The name of another strategy in step for the discriminator; None: the same.
        average: An `Average` of the caller's; None: one is made. It is the first of the
            trainer's callbacks, except with a master, which has none.
        watch: Whether to look out for a collapse and for dead players (gan_watch.py).
        others: Arguments of `Plan`, and options of the strategy.
    """
    if "overlap" in others:
        raise TypeError(
            "overlap saved no time and has gone: leave it out (the weights are the same)"
        )
    named = {name: others.pop(name) for name in others.keys() & Plan.__dataclass_fields__.keys()}
    names = strategy, discriminator or strategy
    rules = strategies.get(names[0], team, **others)
    watching = [Watch(game)] if watch else []
    if strategy in WITH_MASTER:
        if names[1] != strategy:
            raise ValueError(
                f"with strategy {strategy!r}, which has a master, both players train by one rule, "
                f"got {discriminator!r} for the discriminator"
            )
        if optimizer is None and rules.default_optimizer != "adam":  # it needs another kind
            optimizer = rules.default_optimizer
    else:
        if game.rules.turns == "simultaneous" and not {*names} <= BEGUN_AND_ENDED:
            raise ValueError(
                f"simultaneous turns need strategies {' or '.join(sorted(BEGUN_AND_ENDED))}, got "
                f"{' and '.join(dict.fromkeys(names))}"
            )
        rules = rules, strategies.get(names[1], rules.team, **others)
        watching.insert(0, Average(game) if average is None else average)
    both = optimizers_of(game, optimizer, rates)
    named["callbacks"] = [*watching, *callbacks_of(callbacks)]
    return Trainer(game, dataset, rules, both, team=team, **named)


def average_of(trainer) -> Average | None:
    """The trainer's Average, or None (with a master)."""
    return next((one for one in trainer.callbacks if isinstance(one, Average)), None)
