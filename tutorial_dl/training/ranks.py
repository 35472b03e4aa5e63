"""How many ranks a run needs, and what each of them does, by its options."""

from __future__ import annotations

from contextlib import suppress
from math import prod

from ..config import AXES, WITH_MASTER, RunConfig
from ..layout import Layout


def cut_over(config: RunConfig) -> dict[str, int]:
    """The axes that a model or its sequences are cut along, and their sizes."""
    sizes = {name: getattr(getattr(config, name), name) for name in AXES}
    return {name: size for name, size in sizes.items() if size is not None}


def layout_of(config: RunConfig, ranks: int | None) -> Layout | None:
    """The Layout of a run with a master on `ranks` ranks, or on as many as it needs (None).

    It is None for strategies without a master, unless ranks form groups. Raises ValueError if
    --masters, --workers, --devices or --upward do not fit the strategy or the number of ranks.
    """
    asked, strategy = config.layout, config.strategy.strategy
    said = {"masters": asked.masters, "workers": asked.workers, "devices": asked.devices}
    said = {name: number for name, number in said.items() if number is not None}
    if not config.with_master:
        if said and "layout" in config.strategy.takes:  # groups of ranks
            if asked.masters:
                raise ValueError(f"--masters {asked.masters}: strategy {strategy!r} has no master")
            said = {"masters": 0} | said
            return Layout.for_ranks(ranks, **said) if ranks else Layout(**said)
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
