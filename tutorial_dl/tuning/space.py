"""What a search may change: `Space`, read from TOML, and what is wrong with it, in one line.

    [learning_rate]               # an option of `train`, or an argument of the model's function
    type = "float"                # or "int", or "category" with choices = [...]
    low = 1e-4
    high = 1.0
    log = true
    [moving_rate]
    type = "float"
    low = 0.1
    high = 1.5
    when = {strategy = "elastic_averaging"}     # or a list of values

A parameter whose condition does not hold has no value. A sampler sees a set of values as a row of
the unit cube: a column for a number, and a column for each choice of a category.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("float", "int", "category")
INACTIVE = 0.5  # the column of a number that has no value


@dataclass(frozen=True)
class Parameter:
    """One parameter of a search.

    Args:
        name: An option of `train`, or an argument of the model's function.
        type: "float", "int" or "category".
        low, high: The range of a number, both included.
        log: Whether a factor counts alike everywhere in the range; low must be above 0 then.
        choices: The values of a category: numbers, texts or booleans.
        when: Names of other parameters, with the value or values for which this one exists.

    Raises:
        ValueError: If these do not describe a parameter.
    """

    name: str
    type: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple = ()
    when: Mapping[str, tuple] = field(default_factory=dict)

    def __post_init__(self):
        say = f"parameter {self.name!r}: "
        if self.type not in KINDS:
            raise ValueError(f"{say}type must be {_one_of(KINDS)}, got {self.type!r}")
        if not isinstance(self.log, bool):
            raise ValueError(f"{say}log must be true or false, got {self.log!r}")
        if not isinstance(self.when, Mapping):
            raise ValueError(f"{say}when must be a table like {{strategy = 'downpour'}}")
        lists = {n: v if isinstance(v, list | tuple) else [v] for n, v in self.when.items()}
        object.__setattr__(self, "when", {name: tuple(values) for name, values in lists.items()})
        if self.type == "category":
            self._check_category(say)
        else:
            self._check_range(say)

    def _check_category(self, say: str) -> None:
        if not isinstance(self.choices, list | tuple):
            raise ValueError(f"{say}choices must be a list, got {self.choices!r}")
        object.__setattr__(self, "choices", tuple(self.choices))
        if not all(isinstance(choice, int | float | str) for choice in self.choices):
            raise ValueError(f"{say}choices must be numbers, texts or booleans")
        if len(self.choices) < 2 or len(set(self.choices)) < len(self.choices):
            raise ValueError(
                f"{say}choices must be at least 2 different values (1, 1.0 and true are equal)"
            )
        if self.low is not None or self.high is not None or self.log:
            raise ValueError(f"{say}a category has choices, and neither low, high nor log")

    def _check_range(self, say: str) -> None:
        if self.choices:
            raise ValueError(f"{say}choices need type = 'category', got {self.type!r}")
        for which in ("low", "high"):
            value, whole = getattr(self, which), self.type == "int"
            good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not good or not math.isfinite(value):
                kind = "a whole number" if whole else "a number"
                raise ValueError(f"{say}{which} must be {kind}, got {value!r}")
        if not self.low < self.high:
            raise ValueError(f"{say}low must be below high, got {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"{say}with log, low must be above 0, got {self.low:g}")

    @property
    def columns(self) -> int:
        return len(self.choices) or 1

    def exists(self, values: Mapping[str, Any]) -> bool:
        """Whether its condition holds, given the values of the parameters before it."""
        return all(
            name in values and _same(values[name], those) for name, those in self.when.items()
        )

    def encode(self, value: Any, row: np.ndarray) -> None:
        """Write a value to its columns of a row."""
        if self.choices:
            row[:] = 0
            row[_place(value, self.choices)] = 1
        elif self.type == "int":
            a, b = self._edges()
            row[0] = (self._scale(value) - a) / (b - a)
        else:
            a, b = self._scale(self.low), self._scale(self.high)
            row[0] = (self._scale(value) - a) / (b - a)

    def decode(self, row: np.ndarray) -> Any:
        """The value at its columns of a row."""
        if self.choices:
            return self.choices[int(np.argmax(row))]
        unit = float(min(1.0, max(0.0, row[0])))
        if self.type == "int":
            a, b = self._edges()
            return int(min(self.high, max(self.low, round(self._value(a + unit * (b - a))))))
        a, b = self._scale(self.low), self._scale(self.high)
        return float(min(self.high, max(self.low, self._value(a + unit * (b - a)))))

    def grid(self, points: int) -> list:
        """All choices, or at most `points` values that lie evenly over the range."""
        if self.choices:
            return list(self.choices)
        if self.type == "int" and not self.log and self.high - self.low < points:
            return list(range(self.low, self.high + 1))
        a, b = self._scale(self.low), self._scale(self.high)
        values = [self._value(a + (b - a) * i / max(1, points - 1)) for i in range(points)]
        values = [min(self.high, max(self.low, value)) for value in values]
        return list(dict.fromkeys(map(round, values) if self.type == "int" else map(float, values)))

    def distribution(self):
        """The parameter as Optuna describes it."""
        from optuna import distributions

        if self.choices:
            return distributions.CategoricalDistribution(self.choices)
        kind = distributions.IntDistribution
        if self.type == "float":
            kind = distributions.FloatDistribution
        return kind(self.low, self.high, log=self.log)

    def _edges(self) -> tuple[float, float]:
        """Half a step beyond the range, so that all whole numbers have a part of the interval."""
        return self._scale(self.low - 0.5), self._scale(self.high + 0.5)

    def _scale(self, value: float) -> float:
        return math.log(value) if self.log else float(value)

    def _value(self, scaled: float) -> float:
        return math.exp(scaled) if self.log else scaled


class Space:
    """The parameters of a search, in an order in which conditions name only earlier ones.

    >>> space = Space.of({"x": {"type": "float", "low": 0.0, "high": 2.0}})
    >>> space.decode(space.encode({"x": 0.5}))
    {'x': 0.5}
    """

    def __init__(self, parameters: Iterable[Parameter]):
        found = {each.name: each for each in parameters}
        if not found:
            raise ValueError("a space must have at least one parameter")
        for each in found.values():
            _check_condition(each, found)
        self.parameters = _in_order(found)
        edges = np.cumsum([0, *(each.columns for each in self.parameters)])
        self.slices = {
            each.name: slice(int(a), int(b))
            for each, a, b in zip(self.parameters, edges, edges[1:], strict=False)
        }
        self.columns = int(edges[-1])

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any]]) -> Space:
        """The space that these tables describe, one per parameter; ValueError in one line."""
        known, made = [one.name for one in fields(Parameter)][1:], []
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise ValueError(f"{name!r} must be a table: [{name}]")
            for key in table:
                if key not in known:
                    hint = nearest(key, known) or f"choose one of {', '.join(known)}"
                    raise ValueError(f"parameter {name!r}: unknown entry {key!r}; {hint}")
            if "type" not in table:
                raise ValueError(f"parameter {name!r} needs a type: {_one_of(KINDS)}")
            made.append(Parameter(name, **table))
        return cls(made)

    @classmethod
    def read(cls, path: Path | str) -> Space:
        """The space in a TOML file; ValueError in one line that begins with its name."""
        try:
            return cls.of(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ValueError(f"space {path}: {reason}") from None

    @property
    def names(self) -> list[str]:
        return list(self.slices)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def distributions(self) -> dict:
        """Optuna's distributions by name, of parameters with and without a condition."""
        return {each.name: each.distribution() for each in self}

    def encode(self, values: Mapping[str, Any]) -> np.ndarray:
        """A set of values as a row of the unit cube, (columns,) float64."""
        row = np.full(self.columns, INACTIVE)
        for each in self:
            part = row[self.slices[each.name]]
            if each.name in values:
                each.encode(values[each.name], part)
            elif each.choices:
                part[:] = 0
        return row

    def decode(self, row: np.ndarray) -> dict[str, Any]:
        """The values at a point of the unit cube: those that exist there."""
        values: dict[str, Any] = {}
        for each in self:
            if each.exists(values):
                values[each.name] = each.decode(row[self.slices[each.name]])
        return values

    def random(self, random: np.random.Generator) -> dict[str, Any]:
        """A set of values, each drawn evenly over its range."""
        return self.decode(random.random(self.columns))

    def grid(self, points: int) -> list[dict[str, Any]]:
        """All combinations of `Parameter.grid(points)`, each once."""
        found: list[dict[str, Any]] = [{}]
        for each in self:
            found = [
                values | {each.name: value} if each.exists(values) else values
                for values in found
                for value in (each.grid(points) if each.exists(values) else [None])
            ]
        return found

    def corners(self, most: int = 4096) -> Iterator[dict[str, Any]]:
        """Sets of values that have every choice and both ends of every range, for checks.

        All combinations of categories, with all numbers low and all high. Where these are more than
        `most`, the first ones, and others that have each choice at least once.
        """
        categories = [each for each in self if each.choices]
        lists = [each.choices for each in categories]
        combinations: Iterable[tuple] = islice(product(*lists), most // 2)
        if math.prod(map(len, lists)) > most // 2:
            longest = max(map(len, lists))
            others = [tuple(one[i % len(one)] for one in lists) for i in range(longest)]
            combinations = chain(combinations, others)
        for chosen in combinations:
            picked = dict(zip((each.name for each in categories), chosen, strict=True))
            for end in ("low", "high"):
                values: dict[str, Any] = {}
                for each in self:
                    if each.exists(values):
                        values[each.name] = (
                            picked[each.name] if each.choices else getattr(each, end)
                        )
                yield values

    def suggest(self, trial) -> dict[str, Any]:
        """Ask Optuna's trial for the values that exist, in order."""
        values: dict[str, Any] = {}
        for each in self:
            if not each.exists(values):
                continue
            if each.choices:
                values[each.name] = trial.suggest_categorical(each.name, each.choices)
            else:
                suggest = trial.suggest_int if each.type == "int" else trial.suggest_float
                values[each.name] = suggest(each.name, each.low, each.high, log=each.log)
        return values


def nearest(name: str, known: Iterable[str]) -> str:
    """'did you mean ...?', or an empty text if no known name is like it."""
    near = difflib.get_close_matches(name.replace("-", "_"), list(known), 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else ""


def _same(value: Any, those: tuple) -> bool:
    return any(type(value) is type(one) and value == one for one in those)


def _place(value: Any, choices: tuple) -> int:
    for place, one in enumerate(choices):
        if type(value) is type(one) and value == one:
            return place
    raise ValueError(f"{value!r} is none of the choices {choices}")


def _one_of(names: Iterable[str]) -> str:
    return "one of " + ", ".join(names)


def _check_condition(one: Parameter, found: dict[str, Parameter]) -> None:
    for name, values in one.when.items():
        if name not in found or name == one.name:
            hint = nearest(name, found.keys() - {one.name}) or "name another parameter of the space"
            raise ValueError(f"parameter {one.name!r}: when names {name!r}; {hint}")
        of = found[name]
        for value in values:
            in_range = not of.choices and not isinstance(value, bool | str)
            in_range = in_range and of.type == "int" and of.low <= value <= of.high
            if not (_same(value, of.choices) or in_range):
                have = (
                    f"one of {', '.join(map(repr, of.choices))}" if of.choices else "in its range"
                )
                if of.type == "float":
                    have = "a category or an int, which can be compared"
                raise ValueError(
                    f"parameter {one.name!r}: when {name} = {value!r} never holds; it must be "
                    f"{have}"
                )


def _in_order(found: dict[str, Parameter]) -> list[Parameter]:
    """The parameters, each after those that its condition names."""
    ordered: dict[str, Parameter] = {}
    while len(ordered) < len(found):
        ready = [
            p for n, p in found.items() if n not in ordered and p.when.keys() <= ordered.keys()
        ]
        if not ready:
            rest = ", ".join(repr(name) for name in found if name not in ordered)
            raise ValueError(f"the conditions of {rest} depend on each other in a circle")
        ordered |= {each.name: each for each in ready}
    return list(ordered.values())
