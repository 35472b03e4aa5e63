"""From a RunConfig to a Trainer: data, model, optimizer, schedule, callbacks and strategy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from .. import data as datasets
from .. import models, strategies
from ..config import OPTIONS, WITH_MASTER, RunConfig
from ..layout import Layout
from ..options import class_weight_of, model_arguments_of, target_of, tensor_rules_of

if TYPE_CHECKING:
    from .optimizer_choice import Choice

# Options that a Trainer takes as they are
OF_TRAINER = ("batch_size", "seed", "accumulate", "compile", "checkpoint", "checkpoint_every")
# Options that replace what a model was compiled with
OF_RULES = ("momentum", "weight_decay", "beta_1", "beta_2")  # hyper-parameters
OF_SCHEDULE = ("schedule", "warm_up", "batch_rule")
AXES = ("pipeline", "context", "tensor")  # of a model that is cut
REPLACING = ("learning_rate", *OF_RULES, "clip_norm", *OF_SCHEDULE)


def prepare(config: RunConfig, team, adapt=lambda replica: replica, dataset=None):
    """Make the Trainer that `config` describes, for the ranks of `team`. Collective.

    `adapt(replica)` returns the Replica to train, which may be another one. A `dataset` that is
    given takes the place of the one that `config` names.

    Raises ValueError if model, data and options do not fit together.
    """
    import random

    import numpy as np

    from ..runtime.handing_out import opened
    from . import schedules
    from .timeline import Timeline
    from .trainer import Trainer

    data = config.data
    # Code that draws from the global generators starts alike in every run and on every rank.
    random.seed(data.seed)
    np.random.seed(data.seed)
    if dataset is None:
        dataset = opened(datasets.load(data.data, **of_files(config)), team)
    arguments = model_arguments_of(data.model_arguments, data.model)
    made = models.build(data.model, dataset, data.seed, arguments)
    shard = getattr(config.strategy, "shard", 1)
    if hasattr(made, "discriminator"):  # a Game
        if shard > 1:
            raise ValueError(f"--shard {shard} takes one model, and a GAN is two: use --shard 1")
        from .gan_setup import prepare_game

        parts = layout_of(config, team.size), lambda metric: callbacks_of(config, metric)
        return prepare_game(config, made, dataset, team, *parts, lambda one: adjusted(config, one))
    asked = [OPTIONS[name].flag for name, value in vars(config.gan).items() if value is not None]
    if asked:
        raise ValueError(f"{asked[0]} is for a GAN, such as digits-gan; got model {data.model!r}")
    replica = adapt(made)
    layout = layout_of(config, team.size)
    its_options = config.strategy_options()
    if cut_over(config):
        replica = cut(config, team, replica, dataset)
    elif shard > 1:
        from ..model_parallel import ShardedReplica

        replica = ShardedReplica(replica, team, its_options.pop("shard"))
    strategy = strategies.get(config.strategy.strategy, team, **its_options, layout=layout)
    strategy.take(replica)
    choice = optimizer_of(config, replica, strategy)
    choice.tell(team)
    options, size = config.values(), data.batch_size
    if isinstance(dataset.train, datasets.Stream):
        per_epoch, size = dataset.train.known, dataset.train.batch_size
    else:
        per_epoch = strategy.updates_an_epoch(len(dataset.train), size)
    planned = schedules.planned(config, choice.optimizer.learning_rate, per_epoch, size)
    return Trainer(
        replica,
        dataset,
        strategy,
        choice.optimizer,
        progress=not config.output.quiet,
        timeline=Timeline() if config.output.timeline else None,
        learning_rate=planned or choice.schedule,
        correct_momentum=planned is not None or choice.schedule is None,
        clip_norm=choice.clip_norm,
        shuffle=not data.keep_order,
        class_weight=data.class_weight and class_weight_of(data.class_weight),
        callbacks=callbacks_of(config),
        **{name: options[name] for name in OF_TRAINER},
    )


def cut(config: RunConfig, team, replica, dataset):
    """This rank's part of the model or of sequences. Collective."""
    from ..model_parallel import Grid, PipelinedReplica

    asked, tensor, context = config.pipeline, config.tensor.tensor, config.context.context
    flag = f"--{next(iter(cut_over(config)))}"
    if isinstance(dataset.train, datasets.Stream):
        raise ValueError(f"{flag} needs samples by number, and data '{dataset.name}' are a stream")
    if asked.pipeline is not None and getattr(dataset.train, "weights", None) is not None:
        raise ValueError("--pipeline takes no weights of samples: leave them out")
    grid = Grid(team, asked.pipeline or 1, tensor or 1, context or 1)
    if tensor is not None:
        replica = tensor_parallel(config, grid, replica)
    elif context is not None:
        replica = context_parallel(config, grid, replica)
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


def cut_over(config: RunConfig) -> dict[str, int]:
    """The axes that a model or its sequences are cut along, and their sizes."""
    sizes = {name: getattr(getattr(config, name), name) for name in AXES}
    return {name: size for name, size in sizes.items() if size is not None}


def context_parallel(config: RunConfig, grid, replica):
    """The replica of this rank's part of sequences. Collective."""
    from ..replica.layered import LayeredReplica

    if replica.traits.library == "keras":
        from ..model_parallel.keras_context_replica import KerasContextReplica as kind
    elif isinstance(replica, LayeredReplica):
        from ..model_parallel import ContextReplica as kind
    else:
        raise ValueError(
            "--context takes Keras models, such as gpt, and model 'transformer': model "
            f"{config.data.model!r} is a {type(replica).__name__}"
        )
    return kind(replica, grid)


def tensor_parallel(config: RunConfig, grid, replica):
    """This rank's part of a model whose layers are cut. Collective."""
    from ..replica.layered import LayeredReplica

    if replica.traits.library == "keras":
        from ..model_parallel.keras_tensor_replica import KerasTensorReplica as kind
    elif isinstance(replica, LayeredReplica):
        from ..model_parallel import LayeredTensorReplica as kind
    else:
        raise ValueError(
            "--tensor takes Keras models, such as mlp, cnn and gpt, and model 'transformer': model "
            f"{config.data.model!r} is a {type(replica).__name__}"
        )
    text, sequence = config.tensor.tensor_rules, config.tensor.sequence_parallel
    return kind(replica, grid, None if text is None else tensor_rules_of(text), sequence)


def of_files(config: RunConfig) -> dict[str, str | None]:
    """The options about HDF5 files, as `data.load` takes them."""
    names = ("features", "labels", "validation", "cache")
    return {name: getattr(config.data, name) for name in names}


def optimizer_of(config: RunConfig, replica, strategy) -> Choice:
    """The optimizer that the options ask for, or that the model was compiled with.

    Its learning rate is the one before warm-up and decay.
    """
    from .optimizer_choice import choose

    asked = config.optimizer
    found = choose(replica, strategy, asked.optimizer)
    optimizer, schedule = found.optimizer, found.schedule
    over = [name for name in OF_SCHEDULE if name in _replaced(config)]
    if over and schedule is not None and asked.learning_rate is None:
        raise ValueError(
            f"{OPTIONS[over[0]].flag} with a model that was compiled with a schedule: give "
            "--learning-rate, too, to replace it, or leave the option out"
        )
    if asked.learning_rate is not None:
        optimizer, schedule = optimizer.at_rate(asked.learning_rate), None
    optimizer = adjusted(config, optimizer)
    note, compiled = found.note, _compiled(replica) if _replaced(config) else None
    if compiled is not None and not compiled.by_default:
        flags = " and ".join(OPTIONS[name].flag for name in _replaced(config))
        given = (
            f"trained with {optimizer.in_words}, learning rate {optimizer.learning_rate:g} "
            f"({flags}); the model was compiled with {compiled.name}, learning rate "
            f"{compiled.optimizer.learning_rate:g}"
        )
        note = f"{note}; {given}" if note else given
    clip_norm = found.clip_norm if asked.clip_norm is None else asked.clip_norm
    return found._replace(optimizer=optimizer, schedule=schedule, clip_norm=clip_norm, note=note)


def _compiled(replica):
    """What the model was compiled with; None also if that could not be used."""
    try:
        return replica.own_optimizer()
    except ValueError:
        return None


def adjusted(config: RunConfig, optimizer):
    """`optimizer` with the hyper-parameters that the options ask for, but for the rate."""
    for name in OF_RULES:
        value = getattr(config.optimizer, name)
        if value is not None and name not in config.strategy.takes:
            optimizer = _with(optimizer, name, value)
    return optimizer


def _with(optimizer, name: str, value: float):
    """`optimizer` with another hyper-parameter; ValueError if it has no such one."""
    if hasattr(optimizer, name):
        return replace(optimizer, **{name: value})
    if optimizer.undivided:
        raise ValueError(
            f"{OPTIONS[name].flag} does not change {optimizer.in_words}, with which the model was "
            "compiled: give --optimizer, too"
        )
    from numba_kernels import optimizers

    others = sorted(n for n in optimizers.NAMES if hasattr(optimizers.get(n), name))
    raise ValueError(
        f"{OPTIONS[name].flag} {value:g} with optimizer {optimizer.name!r}, which has none; use "
        f"{', '.join(others)}"
    )


def _replaced(config: RunConfig) -> list[str]:
    """The names of the options that replace what a model was compiled with."""
    values = config.values()
    names = [name for name in ("optimizer", *REPLACING) if values[name] != OPTIONS[name].default]
    taken = config.strategy.takes  # some rules have a momentum of their own
    return [name for name in names if name not in taken]


def callbacks_of(config: RunConfig, metric: str = "val_loss") -> list:
    """The callbacks that options ask for; --patience waits for `metric` to improve."""
    from . import callbacks

    found = []
    if config.schedule.target is not None:
        found.append(callbacks.Target(*target_of(config.schedule.target)))
    if config.schedule.patience is not None:
        found.append(callbacks.EarlyStopping(metric, config.schedule.patience))
    if config.output.save_best is not None:
        found.append(callbacks.SaveBest(config.output.save_best))
    if config.output.log is not None:
        found.append(callbacks.Log(config.output.log))
    if config.output.report_every is not None:
        found.append(callbacks.Throughput(config.output.report_every))
    return found


def layout_of(config: RunConfig, ranks: int | None) -> Layout | None:
    """The Layout of a run with a master on `ranks` ranks, or on as many as it needs (None).

    It is None for strategies without a master. Raises ValueError if --masters, --workers, --devices
    or --upward do not fit the strategy or the number of ranks.
    """
    asked, strategy = config.layout, config.strategy.strategy
    said = {"masters": asked.masters, "workers": asked.workers, "devices": asked.devices}
    said = {name: number for name, number in said.items() if number is not None}
    if not config.with_master:
        if said:
            _check_no_master(config, ranks)
        return None
    if asked.upward is not None and (asked.masters or 1) < 2:
        raise ValueError(
            f"--upward {asked.upward} needs sub-masters: --masters must be at least 2, "
            f"got {asked.masters or 1}"
        )
    if asked.masters == 0:
        raise ValueError(f"--masters 0 with strategy {strategy!r}, which needs one or more")
    if ranks is None and said:
        return Layout(**said)
    return Layout.for_ranks(ranks or 1, **said)


def ranks_of(config: RunConfig) -> int | None:
    """The number of ranks asked for, or that `layout_of` needs; None for the default, 1."""
    layout = layout_of(config, config.layout.ranks)
    if layout:
        return layout.ranks
    axes = cut_over(config)
    cut = prod(axes.values()) if axes else None
    return config.layout.ranks or _ranks_without_master(config) or cut


def with_ranks(config: RunConfig, ranks: int) -> RunConfig:
    """`config` with the number of ranks that trained where it does not follow from the layout."""
    with suppress(ValueError):  # none was given: mpiexec has started the ranks
        if (ranks_of(config) or 1) == ranks:
            return config
    return RunConfig.of(**config.values() | {"ranks": ranks})


def _ranks_without_master(config: RunConfig) -> int | None:
    asked = config.layout
    if not (asked.workers or asked.devices):
        return None
    return (asked.workers or 1) * (asked.devices or 1)


def _check_no_master(config: RunConfig, ranks: int | None) -> None:
    asked, strategy = config.layout, config.strategy.strategy
    if strategy != "synchronous" or asked.masters != 0:
        raise ValueError(
            f"--masters, --workers or --devices with strategy {strategy!r}, which has no master; "
            f"{', '.join(WITH_MASTER)} have one, 'synchronous' takes --masters 0"
        )
    need = _ranks_without_master(config)
    if need is not None and ranks not in (None, need):
        raise ValueError(
            f"-n {ranks}, but without a master {asked.workers or 1} workers of "
            f"{asked.devices or 1} ranks each need {need} ranks"
        )
