"""From a RunConfig to a Trainer: data, model, optimizer, schedule, callbacks and strategy."""

from contextlib import suppress
from dataclasses import replace

from .. import data as datasets
from .. import models, strategies
from ..config import WITH_MASTER, RunConfig, target_of
from ..layout import Layout

# Options that a Trainer takes as they are
OF_TRAINER = ("batch_size", "seed", "accumulate", "clip_norm", "checkpoint", "checkpoint_every")


def prepare(config: RunConfig, team):
    """Make the Trainer that `config` describes, for the ranks of `team`. Collective.

    Raises ValueError if model, data and options do not fit together.
    """
    import random

    import numpy as np

    from . import schedules
    from .timeline import Timeline
    from .trainer import Trainer

    data = config.data
    # Code that draws from the global generators starts alike in every run and on every rank.
    random.seed(data.seed)
    np.random.seed(data.seed)
    dataset = datasets.load(data.data, **of_files(config))
    replica = models.build(data.model, dataset, seed=data.seed)
    layout = layout_of(config, team.size)
    name, its_options = config.strategy.strategy, config.strategy_options()
    strategy = strategies.get(name, team, **its_options, layout=layout)
    optimizer = optimizer_of(config, strategy.default_optimizer)
    per_epoch = strategy.updates_an_epoch(len(dataset.train), data.batch_size)
    options = config.values()
    return Trainer(
        replica,
        dataset,
        strategy,
        optimizer,
        progress=not config.output.quiet,
        timeline=Timeline() if config.output.timeline else None,
        learning_rate=schedules.planned(config, optimizer.learning_rate, per_epoch),
        callbacks=callbacks_of(config),
        **{name: options[name] for name in OF_TRAINER},
    )


def of_files(config: RunConfig) -> dict[str, str | None]:
    """The options about HDF5 files, as `data.load` takes them."""
    names = ("features", "labels", "validation", "cache")
    return {name: getattr(config.data, name) for name in names}


def optimizer_of(config: RunConfig, default: str):
    from numba_kernels import optimizers

    asked = config.optimizer
    found = optimizers.get(asked.optimizer or default, asked.learning_rate)
    if asked.momentum is None or "momentum" in config.strategy.takes:
        return found
    if not hasattr(found, "momentum"):
        raise ValueError(
            f"--momentum {asked.momentum:g} with optimizer {found.name!r}, which has none; use sgd"
        )
    return replace(found, momentum=asked.momentum)


def callbacks_of(config: RunConfig) -> list:
    from . import callbacks

    found = []
    if config.schedule.target is not None:
        found.append(callbacks.Target(*target_of(config.schedule.target)))
    if config.schedule.patience is not None:
        found.append(callbacks.EarlyStopping(patience=config.schedule.patience))
    if config.output.save_best is not None:
        found.append(callbacks.SaveBest(config.output.save_best))
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
    return layout.ranks if layout else config.layout.ranks or _ranks_without_master(config)


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
