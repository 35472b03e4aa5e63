"""From a RunConfig to a Plan: data, model, cut, strategy, callbacks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from .. import data as datasets
from .. import models, strategies
from ..config import OPTIONS, RunConfig
from ..data import Dataset
from ..options import class_weight_of, model_arguments_of, monitor_of, target_of, tensor_rules_of
from ..replica.gan import Game, in_memory
from ..runtime.handing_out import opened
from .optimizer_choice import adjusted, optimizers_of
from .ranks import cut_over, layout_of
from .timeline import Timeline
from .trainer import Trainer

# Options that a Plan takes as they are
OF_PLAN = ("batch_size", "seed", "accumulate", "compile", "checkpoint", "checkpoint_every",
           "clip_norm")  # fmt: skip
# Options that a game does not take, and their defaults
REFUSED = (
    "accumulate", "sync_batch_norm", "class_weight", "save_best", "compile", "one_copy",
    "compression", "pipeline", "tensor", "context", "ema", "look_ahead", "noise_scale",
)  # fmt: skip
# Options of GanConfig -> fields of Rules
OF_GAME = {
    "discriminator_steps": "discriminator_steps", "gan_turns": "turns", "gan_loss": "loss",
    "gradient_penalty": "penalty", "label_smoothing": "smoothing", "label_flips": "flips",
}  # fmt: skip


def prepare(config: RunConfig, team, synchronise=None, dataset=None) -> Any:
    """Make the Trainer that `config` describes, for the ranks of `team`. Collective.

    `synchronise(replica)` makes the one that --sync-batch-norm asks for (interop/layers). A
    `dataset` that is given takes the place of the one that `config` names.

    Raises ValueError if model, data and options do not fit together.
    """
    data = config.data
    # Code that draws from the global generators starts alike in every run and on every rank.
    random.seed(data.seed)
    np.random.seed(data.seed)
    if dataset is None:
        dataset = opened(datasets.load(data.data, **config.data.files), team)
    arguments = model_arguments_of(data.model_arguments, data.model)
    made = models.build(data.model, dataset, data.seed, arguments)
    if isinstance(made, Game):
        from .gan import gan_trainer

        return gan_trainer(**common(config, team) | game_of(config, made, dataset, team))
    replica = synchronise(made) if data.sync_batch_norm else made
    return Trainer(**common(config, team) | model_of(config, replica, dataset, team))


def common(config: RunConfig, team) -> dict[str, Any]:
    """The arguments of a Plan that follow from the options alone."""
    values, weights = config.values(), config.data.class_weight
    return {name: values[name] for name in OF_PLAN} | {
        "team": team,
        "optimizer": config,
        "learning_rate": config.schedule,
        "progress": not config.output.quiet,
        "timeline": Timeline() if config.output.timeline else None,
        "shuffle": not config.data.keep_order,
        "class_weight": weights and class_weight_of(weights),
    }


def game_of(config: RunConfig, game: Game, dataset: Dataset, team: Any) -> dict[str, Any]:
    """The arguments of `gan_trainer` that do not follow from the options alone.

    Raises ValueError for options that a game does not take.
    """
    from .gan import Average
    from .gan_quality import Quality
    from .gan_samples import Samples

    values = config.values()
    for name in REFUSED:
        if values[name] != OPTIONS[name].unset:
            raise ValueError(f"{OPTIONS[name].flag} does not fit a GAN, leave it out")
    if config.schedule.batch_rule == "noise":
        raise ValueError("--batch-rule noise does not fit a GAN, leave it out")
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
    if own.get("shard", 1) > 1:
        raise ValueError(f"--shard {own['shard']} takes one model, and a GAN is two: use --shard 1")
    if config.with_master:
        own["layout"] = layout_of(config, team.size)
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
    asked_for = callbacks_of(config, quality.columns[0] if quality.columns else "")
    return own | {
        "game": game,
        "dataset": dataset,
        "strategy": name,
        "optimizer": adjusted(config, optimizers_of(game, optimizer, rates)[0]),
        "rates": rates,
        "average": average,
        "callbacks": [quality, samples, *asked_for],
    }


def model_of(config: RunConfig, replica, dataset, team) -> dict[str, Any]:
    """The other arguments of a Plan, for one model. Collective."""
    asked = [OPTIONS[name].flag for name, value in vars(config.gan).items() if value is not None]
    if asked:
        model = config.data.model
        raise ValueError(f"{asked[0]} is for a GAN, such as digits-gan; got model {model!r}")
    layout, options = layout_of(config, team.size), config.strategy_options()
    if cut_over(config):
        replica = cut(config, team, replica, dataset)
    elif options.get("shard", 1) > 1:
        from ..model_parallel import ShardedReplica

        replica = ShardedReplica(replica, team, options.pop("shard"))
    if config.schedule.batch_rule == "noise":
        options["noise_scale"] = True
    strategy = strategies.get(config.strategy.strategy, team, **options, layout=layout)
    return {
        "model": replica, "dataset": dataset, "strategy": strategy,
        "callbacks": callbacks_of(config),
    }  # fmt: skip


def cut(config: RunConfig, team, replica, dataset):
    """This rank's part of the model or of sequences. Collective."""
    from ..model_parallel import Grid, PipelinedReplica

    asked, tensor, context = config.pipeline, config.tensor.tensor, config.context.context
    flag = f"--{next(iter(cut_over(config)))}"
    if isinstance(dataset.train, datasets.Stream):
        raise ValueError(f"{flag} needs samples by number, and data '{dataset.name}' are a stream")
    if asked.pipeline is not None and getattr(dataset.train, "weights", None) is not None:
        raise ValueError("--pipeline takes no weights of samples: leave them out")
    if replica.traits.library != "keras" and (tensor is not None or context is not None):
        axis, lesson = "tensor", "TensorReplica"
        if tensor is None:
            axis, lesson = "context", "RingAttention"
        raise ValueError(
            f"--{axis} takes Keras models, such as --model gpt or mlp, and model "
            f"'{config.data.model}' is a {type(replica).__name__} of numpy; the lesson in numpy is "
            f"model_parallel.{lesson}"
        )
    grid = Grid(team, asked.pipeline or 1, tensor or 1, context or 1)
    if tensor is not None or context is not None:
        from ..model_parallel import KerasPartReplica

        text, sequence = config.tensor.tensor_rules, config.tensor.sequence_parallel
        rules = None if text is None else tensor_rules_of(text)
        replica = KerasPartReplica(replica, grid, rules, sequence)
    if asked.pipeline is None:
        return replica
    size = max(1, config.data.batch_size // (asked.micro_batches or 2 * asked.pipeline))
    return PipelinedReplica(
        replica,
        grid,
        asked.pipeline_schedule,
        asked.micro_batches,
        asked.chunks,
        layers=None if asked.cut_at is None else asked.cut_at.split(","),
        sample=dataset.train.take(slice(0, size))[0],
        recompute=asked.recompute,
    )


def callbacks_of(config: RunConfig, metric: str = "val_loss") -> list:
    """The callbacks that options ask for; without --monitor, --patience looks at `metric`."""
    from . import callbacks

    found, judged = [], config.schedule.monitor
    metric, mode = (metric, "auto") if judged is None else monitor_of(judged)
    if config.schedule.target is not None:
        found.append(callbacks.Target(*target_of(config.schedule.target)))
    if config.schedule.patience is not None:
        found.append(callbacks.EarlyStopping(metric, config.schedule.patience, mode=mode))
    if config.schedule.batch_rule == "noise":
        found.append(callbacks.GrowBatch())
    if config.output.save_best is not None:
        found.append(callbacks.SaveBest(config.output.save_best, metric, mode))
    if config.output.log is not None:
        found.append(callbacks.Log(config.output.log))
    if config.output.report_every is not None:
        found.append(callbacks.Throughput(config.output.report_every))
    return found
