"""From a RunConfig and a Game to a Trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..config import OPTIONS, RunConfig
from ..data import Dataset
from ..replica.gan import Game, in_memory
from . import schedules
from .gan import Average, gan_trainer, optimizers_of
from .gan_quality import Quality
from .gan_samples import Samples
from .timeline import Timeline

# Options that a game does not take, and their defaults
REFUSED = (
    "accumulate", "sync_batch_norm", "class_weight", "save_best", "compile", "one_copy",
    "compression", "pipeline", "tensor", "context",
)  # fmt: skip
# Options of GanConfig -> fields of Rules
OF_GAME = {
    "discriminator_steps": "discriminator_steps", "gan_turns": "turns", "gan_loss": "loss",
    "gradient_penalty": "penalty", "label_smoothing": "smoothing", "label_flips": "flips",
}  # fmt: skip


def prepare_game(
    config: RunConfig,
    game: Game,
    dataset: Dataset,
    team: Any,
    layout: Any,
    callbacks: Callable[[str], list],
    adjusted: Callable[[Any], Any],
) -> Any:
    """Make the Trainer of a game that `config` describes. Collective.

    `layout`, `callbacks(metric)` and `adjusted(optimizer)` are what the options of any run amount
    to (setup.py); --patience waits for `metric` to improve.

    Raises ValueError for options that a game does not take.
    """
    values = config.values()
    for name in REFUSED:
        if values[name] != OPTIONS[name].unset:
            raise ValueError(f"{OPTIONS[name].flag} does not fit a GAN, leave it out")
    rules = {OF_GAME[name]: value for name, value in vars(config.gan).items()
             if name in OF_GAME and value is not None}  # fmt: skip
    if rules.get("loss") == "wasserstein":  # which has no labels
        rules = {"smoothing": 0.0, "flips": 0.0} | rules
    game.rules = replace(game.rules, **rules)
    if "penalty" in rules and game.rules.loss != "wasserstein":
        raise ValueError("--gradient-penalty has no effect without --gan-loss wasserstein")

    asked, name = config.optimizer, config.strategy.strategy
    rates = list(game.rules.rates)
    for i, rate in enumerate((asked.learning_rate, config.gan.discriminator_learning_rate)):
        rates[i] = rates[i] if rate is None else rate
    own = config.strategy_options()
    optimizer = asked.optimizer
    if optimizer is None and config.with_master and name != "downpour":
        optimizer = "sgd"
    both = optimizers_of(game, optimizer, rates)
    both = [adjusted(one) for one in both]
    if config.with_master:
        own["layout"] = layout
        if config.gan.gan_turns == "alternating":
            raise ValueError(
                f"--gan-turns alternating with strategy {name!r}: a master trains both players at "
                "once"
            )
        if config.gan.discriminator_learning_rate is not None:
            raise ValueError(
                f"--discriminator-learning-rate with strategy {name!r}: a master trains both "
                "players as one model, with one learning rate"
            )
    dataset = in_memory(dataset)
    average = None if config.with_master else Average(game)
    quality = Quality(game, dataset, average, config.data.seed, alone=config.with_master)
    if config.schedule.patience is not None and dataset.validation is None:
        raise ValueError(
            f"--patience needs a measure of the samples' quality, which needs a validation part; "
            f"data {dataset.name!r} have none"
        )
    if config.schedule.patience is not None and not quality.columns:
        raise ValueError(
            f"--patience needs a measure of the samples' quality, and there is none for data "
            f"{dataset.name!r}: they must be numbers, images of classes, or showers"
        )
    samples = Samples(game, dataset, config.data.seed)
    asked_for = callbacks(quality.columns[0] if quality.columns else "")
    trainer = gan_trainer(
        game, dataset, name, both[0], batch_size=config.data.batch_size, seed=config.data.seed,
        team=team, callbacks=[quality, samples, *asked_for],
        progress=not config.output.quiet, checkpoint=config.checkpoint.checkpoint,
        checkpoint_every=config.checkpoint.checkpoint_every, clip_norm=asked.clip_norm,
        timeline=Timeline() if config.output.timeline else None, average=average,
        shuffle=not config.data.keep_order, rates=rates, **own,
    )  # fmt: skip
    updates = trainer.run.steps_per_epoch
    for player, rate in zip(trainer.players, rates, strict=False):
        player.schedule = schedules.planned(config, rate, updates, config.data.batch_size)
        if player.schedule is not None:
            player.optimizer = player.optimizer.at_rate(player.schedule(0))
    return trainer
