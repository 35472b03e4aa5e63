"""The options of a training run: one dataclass per component, each option declared once.

The command line, `--config` files, the `config` of JSON results and of checkpoint folders, and the
table of options in docs/training.md are all derived from these fields. Values are numbers, texts
and booleans; None means "not given". Nothing is built here.

    config = RunConfig.of(strategy="downpour", workers=3)
    config.check()                           # ValueError with one line
    config.strategy.strategy, config.words() # "downpour", the command line of a rank
    Path("run.toml").write_text(config.toml())
    RunConfig.of(**read(Path("run.toml")))   # the same again

`python -m tutorial_dl.config` prints the table for the docs.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from numba_kernels.compression import NAMES as COMPRESSIONS
from numba_kernels.optimizers.names import NAMES as OPTIMIZERS

WITH_MASTER = ("downpour", "elastic_averaging", "gradient_energy_matching")
STRATEGIES = ("serial", "synchronous", *WITH_MASTER, "hogwild")
TIMELINES = (".json", ".png", ".svg", ".pdf")  # a trace for Perfetto, or a figure


def option(default, help: str, **more):
    """A field that is an option.

    Args:
        default: its value if it is not given
        help: its line in `--help` and in the docs
        more: `least`, the smallest value; `choices`, all values; `metavar`, what `--help` calls the
            value; `of`, the strategies that take it (all others refuse it); `short`, a short name
    """
    return field(default=default, metadata={"help": help, **more})


# fmt: off
@dataclass(frozen=True)
class DataConfig:
    model: str = option(
        "dense", "Model: a name (curve, softmax, dense, mlp, cnn, lstm), or module:function.")
    data: str = option(
        "digits", "Data: a name (digits, curve, events), module:function, or HDF5 files (paths "
        "separated by commas, a pattern in quotes, or a .txt file that lists paths).")
    batch_size: int = option(
        32, "Samples per update, over all ranks; with asynchronous workers, per worker.", least=1)
    accumulate: int = option(
        1, "Micro-batches per batch, computed one after the other to save memory.", least=1)
    seed: int = option(0, "Seed of initial weights and sample order.", least=0)
    features: str | None = option(
        None, "Names of the input datasets in HDF5 files; default: features.",
        metavar="NAME[,NAME]")
    labels: str | None = option(
        None, "Names of the target datasets in HDF5 files; default: labels.",
        metavar="NAME[,NAME]")
    validation: str | None = option(
        None, "HDF5 files to validate on, or the fraction of --data to hold out; default: 0.2.",
        metavar="FILES|SHARE")
    cache: str | None = option(
        None, "Local folder for copies of HDF5 files, made once per node.", metavar="DIR")


@dataclass(frozen=True)
class OptimizerConfig:
    optimizer: str | None = option(
        None, "Optimizer; default: adam, or the one that the strategy needs.", choices=OPTIMIZERS)
    learning_rate: float | None = option(
        None, "Learning rate; default: the optimizer's own.", least=0.0)
    momentum: float | None = option(
        None, "Momentum of elastic averaging or energy matching, else of the optimizer.",
        of=("elastic_averaging", "gradient_energy_matching"))
    clip_norm: float | None = option(None, "Clip gradients to this global norm.")


@dataclass(frozen=True)
class ScheduleConfig:
    epochs: int = option(5, "Number of passes through the data.", least=1)
    schedule: str = option(
        "constant", "How the learning rate decays over the epochs.",
        choices=("constant", "step", "exponential", "cosine"))
    warm_up: float = option(
        0.0, "Raise the learning rate over the first EPOCHS epochs.", least=0.0, metavar="EPOCHS")
    batch_rule: str | None = option(
        None, "Scale the learning rate by a rule of batch size / base batch size.",
        choices=("linear", "square-root"))
    base_batch_size: int = option(32, "Batch size for which the learning rate was tuned.", least=1)
    patience: int | None = option(
        None, "Stop after EPOCHS epochs without a lower validation loss.",
        least=1, metavar="EPOCHS")
    target: str | None = option(
        None, "Stop when METRIC reaches X, for example val_accuracy=0.97.", metavar="METRIC=X")


@dataclass(frozen=True)
class StrategyConfig:
    strategy: str = option(
        "synchronous", "Rule by which the ranks train together.", choices=STRATEGIES)
    one_copy: bool = option(
        False, "Keep one copy of the weights per node, to save memory (synchronous).",
        of=("synchronous",))
    compression: str | None = option(
        None, "Reduce gradients by this compression method (synchronous).",
        choices=COMPRESSIONS, of=("synchronous",))
    every: int | None = option(
        None, "Steps of a worker per exchange with its master (downpour, elastic averaging).",
        least=1, metavar="STEPS", of=("downpour", "elastic_averaging"))
    synchronous: bool = option(
        False, "Make the master wait for all of its workers (downpour, elastic averaging).",
        of=("downpour", "elastic_averaging"))
    staleness_aware: bool = option(
        False, "Divide the learning rate of an update by 1 + its staleness (downpour).",
        of=("downpour",))
    lower_momentum: bool = option(
        False, "Reduce momentum by the implicit momentum of asynchrony (downpour).",
        of=("downpour",))
    moving_rate: float | None = option(
        None, "Moving rate of elastic averaging: number of workers times alpha.",
        of=("elastic_averaging",))
    kappa: float | None = option(
        None, "Energy factor kappa of energy matching; 1 matches momentum SGD.",
        of=("gradient_energy_matching",))


@dataclass(frozen=True)
class LayoutConfig:
    ranks: int | None = option(
        None, "Number of ranks to start; leave it out under mpiexec, srun or aprun.", short="-n")
    masters: int | None = option(
        None, "1: one master; 2 or more: sub-masters under one master; 0: no master.", least=0)
    workers: int | None = option(None, "Workers per master or sub-master.", least=1)
    devices: int | None = option(
        None, "Ranks per worker; they compute each batch together.", least=1)
    upward: str | None = option(
        None, "Worker exchanges per exchange of a sub-master with the top master.",
        metavar="EXCHANGES|auto", of=WITH_MASTER)


@dataclass(frozen=True)
class CheckpointConfig:
    checkpoint: str | None = option(
        None, "Write a checkpoint to FOLDER after each epoch.", metavar="FOLDER")
    checkpoint_every: int | None = option(
        None, "Also write a checkpoint every STEPS steps.", least=1, metavar="STEPS")
    resume: bool = option(False, "Continue from the newest checkpoint, if there is one.")


@dataclass(frozen=True)
class OutputConfig:
    quiet: bool = option(False, "Hide the progress bar.")
    report_every: int | None = option(
        None, "Print loss and speed every STEPS steps.", least=1, metavar="STEPS")
    json: str | None = option(None, "Write the result as JSON; - prints it.", metavar="FILE")
    timeline: str | None = option(
        None, "Record what every rank does when: .json for Perfetto, .png, .svg or .pdf for a "
        "figure.", metavar="FILE")
# fmt: on


@dataclass(frozen=True)
class RunConfig:
    """All options of a run, by component. A component's name is that of its table in TOML."""

    data: DataConfig = field(default_factory=DataConfig, metadata={"panel": "Model and data"})
    optimizer: OptimizerConfig = field(
        default_factory=OptimizerConfig, metadata={"panel": "Optimizer"}
    )
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig, metadata={"panel": "Schedule"})
    strategy: StrategyConfig = field(default_factory=StrategyConfig, metadata={"panel": "Strategy"})
    layout: LayoutConfig = field(
        default_factory=LayoutConfig, metadata={"panel": "Masters and workers"}
    )
    checkpoint: CheckpointConfig = field(
        default_factory=CheckpointConfig, metadata={"panel": "Checkpoints"}
    )
    output: OutputConfig = field(default_factory=OutputConfig, metadata={"panel": "Output"})

    @classmethod
    def of(cls, **values) -> RunConfig:
        """The configuration with these options; all others have their defaults.

        Example:
            >>> RunConfig.of(epochs=3, optimizer="sgd").schedule.epochs
            3
        """
        tables: dict[str, dict] = {}
        for name, value in values.items():
            tables.setdefault(OPTIONS[name].table, {})[name] = value
        return cls(**{table: COMPONENTS[table](**given) for table, given in tables.items()})

    def values(self) -> dict[str, Any]:
        """All options by name."""
        return {o.name: getattr(getattr(self, o.table), o.name) for o in OPTIONS.values()}

    def tables(self) -> dict[str, dict[str, Any]]:
        """The options by component and name, without those that are None."""
        found: dict[str, dict[str, Any]] = {}
        for name, value in self.values().items():
            if value is not None:
                found.setdefault(OPTIONS[name].table, {})[name] = value
        return found

    def toml(self) -> str:
        """The text of a --config file with these options."""
        lines = []
        for table, values in self.tables().items():
            # JSON writes numbers, texts and booleans as TOML does, except for one character.
            texts = {n: json.dumps(v, ensure_ascii=False) for n, v in values.items()}
            rows = (f"{n} = {text}".replace("\x7f", "\\u007f") for n, text in texts.items())
            lines += [f"[{table}]", *rows, ""]
        return "\n".join(lines)

    def words(self) -> list[str]:
        """The command line of one rank: `train` and every option that is not at its default."""
        words = ["train"]
        for name, value in self.values().items():
            if name != "ranks" and value != OPTIONS[name].default:
                words += [OPTIONS[name].flag] if value is True else [OPTIONS[name].flag, str(value)]
        return words

    @property
    def with_master(self) -> bool:
        """Whether the strategy has a master, so that workers may be lost."""
        return self.strategy.strategy in WITH_MASTER

    @property
    def rule_has_momentum(self) -> bool:
        """Whether --momentum is the strategy's, not the optimizer's."""
        return self.strategy.strategy in OPTIONS["momentum"].of

    def strategy_options(self) -> dict[str, Any]:
        """The options that only some strategies take, as `strategies.get` takes them."""
        found = {name: value for name, value in self.values().items() if name in TAKEN_BY}
        if not self.rule_has_momentum:
            del found["momentum"]
        if self.layout.upward not in (None, "auto"):
            found["upward"] = int(self.layout.upward)
        return found

    def check(self) -> None:
        """Check each option, and that they fit together.

        Raises:
            ValueError: for an option that is wrong, or that has no effect.
        """
        for name, value in self.values().items():
            OPTIONS[name].checked(value)
        upward, timeline = self.layout.upward, self.output.timeline
        if upward not in (None, "auto") and not (upward.isdecimal() and int(upward)):
            raise ValueError(
                f"--upward must be a whole number of at least 1, or auto, got {upward!r}"
            )
        check_strategy(self.strategy.strategy, self.strategy_options())
        if timeline is not None:
            check_timeline(Path(timeline))
        if self.schedule.base_batch_size != 32 and self.schedule.batch_rule is None:
            raise ValueError("--base-batch-size has no effect without --batch-rule")
        if self.schedule.target is not None:
            target_of(self.schedule.target)
        if self.checkpoint.checkpoint is None:
            for name in ("checkpoint_every", "resume"):
                if getattr(self.checkpoint, name):
                    raise ValueError(f"{OPTIONS[name].flag} needs --checkpoint FOLDER")


@dataclass(frozen=True)
class Option:
    """One option, as the command line, files and docs see it."""

    name: str
    kind: type  # int, float, str or bool
    default: Any
    help: str
    table: str
    panel: str
    least: float | None = None
    choices: tuple[str, ...] | None = None
    metavar: str | None = None
    of: tuple[str, ...] = ()
    short: str | None = None

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def checked(self, value: Any) -> Any:
        """`value` in the option's own type.

        A list of texts becomes one text with commas, as the command line has it.

        Raises:
            ValueError: if it has another type, or is out of range.
        """
        if value is None and self.default is None:
            return None
        kinds = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        if self.kind is str and isinstance(value, list):
            value = ",".join(map(str, value))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and (self.kind is float or (self.kind is str and not self.choices)):
            value = self.kind(value)
        if type(value) is not self.kind or value != value:
            raise ValueError(f"{self.name} must be {kinds[self.kind]}, got {value!r}")
        if self.least is not None and value < self.least:
            raise ValueError(f"{self.name} must be at least {self.least:g}, got {value:g}")
        if self.choices and value not in self.choices:
            known = ", ".join(self.choices)
            raise ValueError(f"unknown {self.name} {value!r}; choose one of {known}")
        if self.kind is float and math.isinf(value):
            raise ValueError(f"{self.name} must be finite, got {value}")
        return value


COMPONENTS: dict[str, type] = get_type_hints(RunConfig)


def _options() -> dict[str, Option]:
    found: dict[str, Option] = {}
    for part in fields(RunConfig):
        kinds = get_type_hints(COMPONENTS[part.name])
        for one in fields(COMPONENTS[part.name]):
            kind = kinds[one.name]  # int, or int | None
            kind = (get_args(kind) or [kind])[0]
            found[one.name] = Option(
                one.name, kind, one.default, table=part.name, **part.metadata, **one.metadata
            )
    return found


OPTIONS = _options()  # by name, in the order of --help
# Which strategies take an option; `layout` is the object that --masters and its like stand for.
TAKEN_BY = {o.name: o.of for o in OPTIONS.values() if o.of} | {"layout": WITH_MASTER}


def check_strategy(name: str, options: dict[str, Any]) -> None:
    """Check that the strategy `name` takes these options; one that is None or False is not given.

    Raises:
        ValueError: there is no such strategy, it does not take one of them, or two exclude each
            other.
    """
    OPTIONS["strategy"].checked(name)
    # (0 counts as given: a momentum of 0 is a valid choice.)
    given = {n for n, value in options.items() if value is not None and value is not False}
    for one in sorted(given & TAKEN_BY.keys()):
        if name not in TAKEN_BY[one]:
            have = " or ".join(map(repr, TAKEN_BY[one]))
            raise ValueError(f"{one} needs strategy {have}, got {name!r}")
    if {"compression", "one_copy"} <= given:
        raise ValueError("one_copy and compression exclude each other; choose one")


def check_timeline(path: Path) -> None:
    """Raise ValueError if the suffix of a timeline's file does not name a format."""
    if path.suffix.lower() not in TIMELINES:
        raise ValueError(
            f"timeline must be a file name that ends in {', '.join(TIMELINES)}, got {str(path)!r}"
        )


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


def read(path: Path) -> dict[str, Any]:
    """The options in a --config file, by name.

    Args:
        path: a TOML file with one table per component, or JSON: such an object, or a result of
            `--json`, whose "config" is taken.

    Raises:
        ValueError: the file cannot be read, or holds an unknown or a wrong option.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tables = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"cannot read {path}: {reason}") from None
    if not isinstance(tables, dict):
        raise ValueError(f"{path} must hold tables of options, got a {type(tables).__name__}")
    if path.suffix == ".json":
        tables = tables.get("config", tables)
    found = {}
    try:
        for table, values in tables.items():
            if table not in COMPONENTS or not isinstance(values, dict):
                raise ValueError(_not_a_table(table))
            for name, value in values.items():
                if name not in OPTIONS or OPTIONS[name].table != table:
                    raise ValueError(f"unknown option {name!r} in [{table}]" + _nearest(name))
                found[name] = OPTIONS[name].checked(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return found


def _not_a_table(name: str) -> str:
    if name in OPTIONS and name not in COMPONENTS:
        return f"option {name!r} is outside of a table; it belongs in [{OPTIONS[name].table}]"
    if name in COMPONENTS:
        return f"{name!r} must be a table: [{name}]"
    near = difflib.get_close_matches(name, COMPONENTS, 1, 0.5)
    near = near or difflib.get_close_matches(name, OPTIONS, 1, 0.5)
    known = ", ".join(f"[{table}]" for table in COMPONENTS)
    return f"unknown table [{name}]" + (
        f"; did you mean {_place(near[0])}?" if near else f"; choose one of {known}"
    )


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), OPTIONS, 1, 0.5)
    return f"; did you mean {_place(near[0])}?" if near else "; see train --help"


def _place(name: str) -> str:
    return f"[{name}]" if name in COMPONENTS else f"{name} in [{OPTIONS[name].table}]"


def markdown() -> str:
    """The table of all options, for docs/training.md."""
    rows = ["| option | in a file | default | meaning |", "|---|---|---|---|"]
    for one in OPTIONS.values():
        default = "" if one.default is None or one.kind is bool else f"`{one.default}`"
        value = "" if one.kind is bool else f" {one.metavar or one.kind.__name__.upper()}"
        meaning = one.help + (f" One of {', '.join(one.choices)}." if one.choices else "")
        flag = f"{one.short}, {one.flag}" if one.short else one.flag
        cells = [f"`{flag}{value}`", f"`[{one.table}] {one.name}`", default, meaning]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(markdown())
