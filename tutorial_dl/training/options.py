"""The words of `python -m tutorial_dl train`, and what can be known to be wrong with them."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path

from numba_kernels import launch

from .. import data as datasets
from .. import models, strategies


@dataclass(frozen=True)
class Options:
    """The words of the command line; see `train --help`."""

    model: str
    data: str
    strategy: str
    epochs: int
    batch_size: int
    optimizer: str | None
    learning_rate: float | None
    seed: int
    quiet: bool
    json: str | None
    one_copy: bool = False
    timeline: str | None = None
    schedule: str = "constant"
    warm_up: float = 0.0
    batch_rule: str | None = None
    base_batch_size: int = 32
    accumulate: int = 1
    clip_norm: float | None = None
    compression: str | None = None
    patience: int | None = None
    target: str | None = None
    report_every: int | None = None
    checkpoint: str | None = None
    checkpoint_every: int | None = None
    resume: bool = False
    features: str | None = None
    labels: str | None = None
    validation: str | None = None
    cache: str | None = None
    masters: int | None = None
    workers: int | None = None
    devices: int | None = None
    every: int | None = None
    synchronous: bool = False
    staleness_aware: bool = False
    lower_momentum: bool = False
    momentum: float | None = None
    moving_rate: float | None = None
    kappa: float | None = None
    upward: str | None = None

    @property
    def has_master(self) -> bool:
        return self.strategy in strategies.RULES

    @property
    def of_files(self) -> dict[str, str | None]:
        """What is said of HDF5 files."""
        return {name: getattr(self, name) for name in ("features", "labels", "validation", "cache")}

    @property
    def of_strategy(self) -> dict:
        """What only some strategies know."""
        options = {name: getattr(self, name) for name in strategies.OPTIONS if name != "layout"}
        if not self.momentum_is_of_strategy:
            del options["momentum"]
        if self.upward not in (None, "auto"):
            options["upward"] = number_of(self.upward)
        return options

    @property
    def momentum_is_of_strategy(self) -> bool:
        return self.strategy in strategies.OPTIONS["momentum"]

    def make_optimizer(self, default: str):
        """The optimizer that is asked for; ValueError if it does not have what it is given."""
        from numba_kernels import optimizers

        found = optimizers.get(self.optimizer or default, self.learning_rate)
        if self.momentum is None or self.momentum_is_of_strategy:
            return found
        if not hasattr(found, "momentum"):
            raise ValueError(f"--momentum with optimizer {found.name!r}, which has none; sgd has")
        return replace(found, momentum=self.momentum)

    def layout(self, ranks: int | None):
        """Who is what on so many ranks (None: as many as it takes); ValueError if that can't be."""
        from ..layout import Layout

        said = (self.masters, self.workers, self.devices)
        if not self.has_master:
            if said != (None, None, None):
                self._check_no_master(ranks)
            return None
        if self.upward is not None and (self.masters or 1) < 2:
            raise ValueError(f"--upward {self.upward} without sub-masters: --masters 2 or more")
        if self.masters == 0:
            raise ValueError(f"--masters 0 with strategy {self.strategy!r}: it needs one or more")
        if ranks is None and said != (None, None, None):
            numbers = dict(zip(("masters", "workers", "devices"), said, strict=True))
            return Layout(**{name: n for name, n in numbers.items() if n is not None})
        return Layout.for_ranks(ranks or 1, *said)

    def _check_no_master(self, ranks: int | None) -> None:
        if self.strategy != "synchronous" or self.masters != 0:
            raise ValueError(
                f"--masters, --workers, --devices with strategy {self.strategy!r}; one of "
                f"{', '.join(strategies.RULES)} has masters, 'synchronous' takes --masters 0"
            )
        need = (self.workers or 1) * (self.devices or 1)
        if (self.workers or self.devices) and ranks not in (None, need):
            raise ValueError(
                f"-n {ranks} with {self.workers or 1} workers of {self.devices or 1} ranks, "
                f"without a master: {need} ranks are right"
            )

    def check(self, ranks: int | None) -> int | None:
        """ValueError or OSError for what can be known to be wrong before ranks are started.

        Returns `ranks`, or how many the layout needs.
        """
        launch.check_ranks(1 if ranks is None else ranks)
        strategies.check(self.strategy, **self.of_strategy)
        if self.strategy == "serial" and (ranks or 1) > 1:
            raise ValueError(f"strategy 'serial' uses 1 rank, not {ranks}; leave out -n {ranks}")
        models.check(self.model)
        datasets.check(self.data, **self.of_files)
        if self.json not in (None, "-"):
            check_writable(Path(self.json))
        if self.timeline is not None:
            check_timeline(Path(self.timeline))
            check_writable(Path(self.timeline))
        if self.base_batch_size != 32 and self.batch_rule is None:
            raise ValueError("--base-batch-size has no effect without --batch-rule")
        if self.target is not None:
            target_of(self.target)
        check_checkpoint(self)
        if not launch.under_mpi():
            layout = self.layout(ranks)
            if layout is not None:
                return layout.ranks
            if ranks is None and (self.workers or self.devices):
                return (self.workers or 1) * (self.devices or 1)
        return ranks

    def words(self) -> list[str]:
        """The command line that says the same, for the ranks."""
        words = ["train"]
        for field in fields(self):
            value = getattr(self, field.name)
            if value is True:
                words += [f"--{field.name.replace('_', '-')}"]
            elif value is not None and value is not False:  # a 0 is said
                words += [f"--{field.name.replace('_', '-')}", str(value)]
        return words


TIMELINES = (".json", ".png", ".svg", ".pdf")  # a trace for Perfetto, or a figure


def check_checkpoint(options: Options) -> None:
    """ValueError or OSError where checkpoints can't be written, or read, as is wished."""
    if options.checkpoint is None:
        for name in ("checkpoint_every", "resume"):
            if getattr(options, name):
                raise ValueError(f"--{name.replace('_', '-')} needs --checkpoint FOLDER")
        return
    folder = Path(options.checkpoint)
    if folder.exists() and not folder.is_dir():
        raise OSError(f"checkpoints can't be written: {folder} is no folder")
    if not folder.exists():
        check_writable(folder)
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"{folder} can't be written: permission denied")


def target_of(text: str) -> tuple[str, float]:
    """("val_accuracy", 0.97) of "val_accuracy=0.97"; ValueError for anything else."""
    metric, _, value = text.partition("=")
    try:
        return metric, float(value)
    except ValueError:
        raise ValueError(f"target {text!r}: METRIC=NUMBER is right, val_accuracy=0.97") from None


def number_of(text: str) -> int:
    """Of --upward."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--upward {text!r}: a number from 1 up, or auto, is right")
    return int(text)


def check_timeline(path: Path) -> None:
    """ValueError unless the end of the name says what is to be written there."""
    if path.suffix.lower() not in TIMELINES:
        raise ValueError(
            f"timeline {str(path)!r}: a name that ends in {', '.join(TIMELINES)} is needed"
        )


def check_writable(path: Path) -> None:
    """OSError, in words, unless `path` can be written: better now than after training."""
    if path.is_dir():
        raise OSError(f"{path} is a folder; a file is needed")
    if not path.parent.is_dir():
        raise OSError(f"{path} can't be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OSError(f"{path} can't be written: permission denied")
