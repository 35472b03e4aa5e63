"""What an option of a run is, and what options mean whose values are texts of some form.

config.py has the options themselves.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOGS = (".csv", ".jsonl")  # other names: a folder for TensorBoard
RISING = re.compile("acc(?![a-z])|accuracy|auc|precision|recall|f1|iou|dice_score")
FALLING = re.compile("loss|error|distance")
TIMELINES = (".json", ".png", ".svg", ".pdf")  # a trace for Perfetto, or a figure


@dataclass(frozen=True)
class Option:
    """One option, as the command line, files and docs see it."""

    name: str
    kind: type  # int, float, str or bool
    default: Any
    help: str
    table: str  # in a file
    panel: str  # of `--help`
    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] | None = None
    metavar: str | None = None  # what `--help` calls the value
    short: str | None = None
    off: str | None = None  # the flag that says no; None: --no-...
    form: Callable[[str], Any] | None = None  # raises ValueError for a text of another form

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def unset(self) -> Any:
        """The value if it is not given; None for options that not all strategies take."""
        of_rule = self.table == "strategy" and self.name != "strategy" and self.kind is not bool
        return None if of_rule else self.default

    @property
    def range(self) -> str:
        """In words: "at least 0 and below 1"; empty if every number fits."""
        bounds = {"at least": self.least, "above": self.above, "below": self.below}
        return " and ".join(f"{words} {b:g}" for words, b in bounds.items() if math.isfinite(b))

    def check_range(self, value: float) -> None:
        """Raise ValueError if a number is out of the option's range."""
        if self.kind is float and math.isinf(value):
            raise ValueError(f"{self.name} must be finite, got {value}")
        if not (self.least <= value and self.above < value < self.below):
            raise ValueError(f"{self.name} must be {self.range}, got {value:g}")

    def checked(self, value: Any) -> Any:
        """`value` in the option's own type; ValueError if it has another, or is out of range.

        A list of texts becomes one text with commas, as the command line has it.
        """
        if value is None and self.unset is None:
            return None
        kinds = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        if self.kind is str and isinstance(value, list):
            value = ",".join(map(str, value))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and (self.kind is float or (self.kind is str and not self.choices)):
            value = self.kind(value)
        if type(value) is not self.kind or value != value:
            raise ValueError(f"{self.name} must be {kinds[self.kind]}, got {value!r}")
        if self.choices and value not in self.choices:
            known = ", ".join(self.choices)
            raise ValueError(f"unknown {self.name} {value!r}; choose one of {known}")
        if self.kind in (int, float):
            self.check_range(value)
        if self.form is not None:
            self.form(value)
        return value


def option(help: str, default=None, **more):
    """A field that is an option; `more` are attributes of `Option`."""
    return field(default=default, metadata={"help": help, **more})


def check_timeline(path: str | Path) -> None:
    """Raise ValueError if the suffix of a timeline's file does not name a format."""
    if Path(path).suffix.lower() not in TIMELINES:
        raise ValueError(
            f"timeline must be a file name that ends in {', '.join(TIMELINES)}, got {str(path)!r}"
        )


def check_upward(text: str) -> None:
    """Raise ValueError unless this is a number of exchanges, or auto."""
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise ValueError(f"--upward must be a whole number of at least 1, or auto, got {text!r}")


def check_log(path: str | Path) -> None:
    """Raise ValueError unless the name is that of a file for rows, a service, or a folder."""
    if Path(path).suffix not in ("", *LOGS):
        raise ValueError(
            f"log must end in {' or '.join(LOGS)}, or be a folder for TensorBoard, wandb or "
            f"mlflow, got {str(path)!r}"
        )


def target_of(text: str) -> tuple[str, float]:
    """The metric's name and its value in a --target option; ValueError if it has another form."""
    metric, _, value = text.partition("=")
    try:
        return metric, float(value)
    except ValueError:
        raise ValueError(
            f"target must be METRIC=NUMBER, for example val_accuracy=0.97, got {text!r}"
        ) from None


def directions_of(text: str) -> list[bool]:
    """Whether to maximise, for each word of --directions; ValueError for another word."""
    known = {"maximise": True, "maximize": True, "minimise": False, "minimize": False}
    try:
        return [known[word.strip()] for word in text.split(",")]
    except KeyError as word:
        raise ValueError(f"directions must be maximise or minimise, got {word}") from None


def rises(metric: str) -> bool | None:
    """Whether a larger value is better, by the last word of a metric's name, else by all of it.

    None: no word says so, or words contradict each other.
    """
    name = re.sub(r"(_\d+)+$", "", metric.lower())
    for text in (name.rpartition("_")[2], name):
        up, down = RISING.search(text), FALLING.search(text)
        if bool(up) != bool(down):
            return bool(up)
    return None


def monitor_of(text: str) -> tuple[str, str]:
    """The metric's name in a --monitor option, and "max" or "min": which value of it is better."""
    name, _, mode = text.partition(":")
    if not mode and (rising := rises(name)) is not None:
        mode = "max" if rising else "min"
    if mode not in ("max", "min"):
        raise ValueError(f"monitor must say what is better, {name}:max or {name}:min, got {text!r}")
    return name, mode


def class_weight_of(text: str) -> dict[int, float] | str:
    """The weights by class in a --class-weight option; ValueError if it has another form."""
    if text == "balanced":
        return text
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        return {int(one): float(weight) for one, weight in pairs}
    except ValueError:
        raise ValueError(
            f"class_weight must be CLASS=WEIGHT,..., for example 0=1,1=5, or balanced, got {text!r}"
        ) from None


def tensor_rules_of(text: str) -> dict[str, str]:
    """The kinds by pattern in a --tensor-rules option; ValueError if it has another form."""
    pairs = [pair.split("=") for pair in text.split(",")]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise ValueError(
            "tensor_rules must be LAYER=KIND,..., for example dense_1=columns,dense_2=rows, got "
            f"{text!r}"
        )
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"tensor_rules gives a layer two kinds: {text!r}")
    return dict(pairs)


def model_arguments_of(text: str | None, model: str) -> dict[str, Any]:
    """The arguments in a --model-arguments option; ValueError if it has another form."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(
            f'model_arguments must be JSON with names, such as {{"width": 64}}, got {text!r}'
        )
    if found and ":" not in model:
        raise ValueError(
            f"model_arguments need a model of your own, module:function, got {model!r}"
        )
    return found
