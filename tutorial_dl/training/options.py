"""The options of `python -m tutorial_dl train`, and checks made before ranks are started."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path

from numba_kernels import launch

from .. import data as datasets
from .. import models, strategies


@dataclass(frozen=True)
class Options:
    """The options of the command line; see `train --help`."""

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
        """Whether the strategy has a master, so that workers may be lost."""
        return self.strategy in strategies.RULES

    @property
    def of_files(self) -> dict[str, str | None]:
        """The options about HDF5 files."""
        return {name: getattr(self, name) for name in ("features", "labels", "validation", "cache")}

    @property
    def of_strategy(self) -> dict:
        """The options that only some strategies have."""
        options = {name: getattr(self, name) for name in strategies.OPTIONS if name != "layout"}
        if not self.momentum_is_of_strategy:
            del options["momentum"]
        if self.upward not in (None, "auto"):
            options["upward"] = number_of(self.upward)
        return options

    @property
    def momentum_is_of_strategy(self) -> bool:
        """Whether --momentum belongs to the strategy's rule, not to the optimizer."""
        return self.strategy in strategies.OPTIONS["momentum"]

    def make_optimizer(self, default: str):
        """The optimizer that was asked for, or the one called `default`.

        Raises:
            ValueError: if --momentum was given and the optimizer has none.
        """
        from numba_kernels import optimizers

        found = optimizers.get(self.optimizer or default, self.learning_rate)
        if self.momentum is None or self.momentum_is_of_strategy:
            return found
        if not hasattr(found, "momentum"):
            raise ValueError(
                f"--momentum {self.momentum:g} with optimizer {found.name!r}, which has none; "
                "use sgd"
            )
        return replace(found, momentum=self.momentum)

    def layout(self, ranks: int | None):
        """The Layout of a run with a master; None for strategies without one.

        Args:
            ranks: number of ranks; None for as many as the layout needs.

        Raises:
            ValueError: if --masters, --workers, --devices or --upward do not fit the strategy or
                the number of ranks.
        """
        from ..layout import Layout

        said = (self.masters, self.workers, self.devices)
        if not self.has_master:
            if said != (None, None, None):
                self._check_no_master(ranks)
            return None
        if self.upward is not None and (self.masters or 1) < 2:
            raise ValueError(
                f"--upward {self.upward} needs sub-masters: --masters must be at least 2, "
                f"got {self.masters or 1}"
            )
        if self.masters == 0:
            raise ValueError(
                f"--masters 0 with strategy {self.strategy!r}, which needs one or more"
            )
        if ranks is None and said != (None, None, None):
            numbers = dict(zip(("masters", "workers", "devices"), said, strict=True))
            return Layout(**{name: n for name, n in numbers.items() if n is not None})
        return Layout.for_ranks(ranks or 1, *said)

    def _check_no_master(self, ranks: int | None) -> None:
        if self.strategy != "synchronous" or self.masters != 0:
            raise ValueError(
                f"--masters, --workers or --devices with strategy {self.strategy!r}, which has no "
                f"master; {', '.join(strategies.RULES)} have one, 'synchronous' takes --masters 0"
            )
        need = (self.workers or 1) * (self.devices or 1)
        if (self.workers or self.devices) and ranks not in (None, need):
            raise ValueError(
                f"-n {ranks}, but without a master {self.workers or 1} workers of "
                f"{self.devices or 1} ranks each need {need} ranks"
            )

    def check(self, ranks: int | None) -> int | None:
        """Check everything that can be checked before ranks are started.

        Args:
            ranks: the -n option; None if it was not given.

        Returns:
            `ranks`, or the number of ranks that the layout needs; None for the default.

        Raises:
            ValueError: for an option that is wrong, or has no effect.
            OSError: for a file or folder that cannot be read or written.
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
        """The command line for the ranks: `train` and every option that is set."""
        words = ["train"]
        for field in fields(self):
            value = getattr(self, field.name)
            if value is True:
                words += [f"--{field.name.replace('_', '-')}"]
            elif value is not None and value is not False:  # 0 is a value
                words += [f"--{field.name.replace('_', '-')}", str(value)]
        return words


TIMELINES = (".json", ".png", ".svg", ".pdf")  # a trace for Perfetto, or a figure


def check_checkpoint(options: Options) -> None:
    """Check that checkpoints can be written and read as the options ask.

    Raises:
        ValueError: if --checkpoint-every or --resume is given without --checkpoint.
        OSError: if the folder is not a folder, or is not writable.
    """
    if options.checkpoint is None:
        for name in ("checkpoint_every", "resume"):
            if getattr(options, name):
                raise ValueError(f"--{name.replace('_', '-')} needs --checkpoint FOLDER")
        return
    folder = Path(options.checkpoint)
    if folder.exists() and not folder.is_dir():
        raise OSError(f"cannot write checkpoints: {folder} is not a folder")
    if not folder.exists():
        check_writable(folder)
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"cannot write to {folder}: permission denied")


def target_of(text: str) -> tuple[str, float]:
    """Split a --target option into the metric's name and its value.

    Raises:
        ValueError: if `text` is not METRIC=NUMBER.

    Example:
        >>> target_of("val_accuracy=0.97")
        ('val_accuracy', 0.97)
    """
    metric, _, value = text.partition("=")
    try:
        return metric, float(value)
    except ValueError:
        raise ValueError(
            f"target must be METRIC=NUMBER, for example val_accuracy=0.97, got {text!r}"
        ) from None


def number_of(text: str) -> int:
    """The number in an --upward option that is not `auto`.

    Raises:
        ValueError: if `text` is not a whole number of at least 1.

    Example:
        >>> number_of("16")
        16
    """
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--upward must be a whole number of at least 1, or auto, got {text!r}")
    return int(text)


def check_timeline(path: Path) -> None:
    """Check that the suffix of a --timeline file names a format.

    Raises:
        ValueError: if it does not.
    """
    if path.suffix.lower() not in TIMELINES:
        raise ValueError(
            f"timeline must be a file name that ends in {', '.join(TIMELINES)}, got {str(path)!r}"
        )


def check_writable(path: Path) -> None:
    """Check that the file `path` can be written, so that this does not fail after training.

    Raises:
        OSError: if it cannot, with the reason.
    """
    if path.is_dir():
        raise OSError(f"{path} is a folder; it must be a file")
    if not path.parent.is_dir():
        raise OSError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OSError(f"cannot write {path}: permission denied")
