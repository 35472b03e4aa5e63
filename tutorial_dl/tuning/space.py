"""What a search may change: `Space`, Optuna's distributions with conditions, read from TOML.

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

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from ..words import near

KINDS = {"float": FloatDistribution, "int": IntDistribution, "category": CategoricalDistribution}
ENTRIES = ("type", "low", "high", "log", "choices", "when")
INACTIVE = 0.5  # the column of a number that has no value


class Space:
    """The parameters of a search, in an order in which conditions name only earlier ones.

    Args:
        distributions: Optuna's distribution of each parameter, by name.
        when: For a parameter with conditions: names of others, with the values for which it exists.

    Raises:
        ValueError: In one line, if a condition never holds, or there is no parameter.

    >>> space = Space.of({"x": {"type": "float", "low": 0.0, "high": 2.0}})
    >>> space.decode(space.encode({"x": 0.5}))
    {'x': 0.5}
    """

    def __init__(
        self,
        distributions: Mapping[str, BaseDistribution],
        when: Mapping[str, Mapping[str, tuple]] | None = None,
    ):
        if not distributions:
            raise ValueError("a space must have at least one parameter")
        self.when = {name: dict(of) for name, of in (when or {}).items() if of}
        for name, condition in self.when.items():
            _check_condition(name, condition, distributions)
        self.distributions = _in_order(dict(distributions), self.when)
        ends = np.cumsum([0, *map(columns_of, self.distributions.values())])
        self.slices = {
            name: slice(int(a), int(b))
            for name, a, b in zip(self.distributions, ends, ends[1:], strict=False)
        }
        self.columns = int(ends[-1])

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any] | BaseDistribution]) -> Space:
        """The space that these tables, or Optuna's distributions, describe, one per parameter.

        Raises ValueError in one line.
        """
        made, when = {}, {}
        for name, table in tables.items():
            if isinstance(table, BaseDistribution):
                made[name] = table
                continue
            made[name] = _distribution(name, table)
            conditions = table.get("when", {})
            if not isinstance(conditions, Mapping):
                raise ValueError(
                    f"parameter {name!r}: when must be a table like {{strategy = 'downpour'}}"
                )
            when[name] = {
                other: tuple(values) if isinstance(values, list | tuple) else (values,)
                for other, values in conditions.items()
            }
        return cls(made, when)

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
        return list(self.distributions)

    def __iter__(self) -> Iterator[tuple[str, BaseDistribution]]:
        return iter(self.distributions.items())

    def exists(self, name: str, values: Mapping[str, Any]) -> bool:
        """Whether a parameter's condition holds, given the values of the parameters before it."""
        return all(
            other in values and _place(values[other], those) is not None
            for other, those in self.when.get(name, {}).items()
        )

    # Rows of the unit cube

    def encode(self, values: Mapping[str, Any]) -> np.ndarray:
        """A set of values as a row of the unit cube, (columns,) float64."""
        row = np.full(self.columns, INACTIVE)
        for name, one in self:
            part = row[self.slices[name]]
            if choices := choices_of(one):
                part[:] = 0
                if name in values:
                    if (place := _place(values[name], choices)) is None:
                        raise ValueError(f"{values[name]!r} is none of the choices {choices}")
                    part[place] = 1
            elif name in values:
                part[0] = to_unit(one, values[name])
        return row

    def decode(self, row: np.ndarray) -> dict[str, Any]:
        """The values at a point of the unit cube: those that exist there."""
        values: dict[str, Any] = {}
        for name, one in self:
            if self.exists(name, values):
                part = row[self.slices[name]]
                choices = choices_of(one)
                values[name] = choices[int(np.argmax(part))] if choices else of_unit(one, part[0])
        return values

    def snapped(self, rows: np.ndarray) -> np.ndarray:
        """The nearest rows of sets that can be had: whole numbers, one choice, conditions."""
        rows = rows.copy()
        found: dict[str, np.ndarray] = {}  # of parameters that conditions may name
        there: dict[str, np.ndarray] = {}  # whether a parameter exists, (rows,)
        for name, one in self:
            part = rows[:, self.slices[name]]
            there[name] = np.ones(len(rows), bool)
            for other, those in self.when.get(name, {}).items():
                choices = choices_of(self.distributions[other])
                wanted = [_place(value, choices) for value in those] if choices else those
                there[name] &= there[other] & np.isin(found[other], wanted)
            if choices_of(one):
                found[name] = part.argmax(1)
                part[:] = np.eye(part.shape[1])[found[name]]
                part[~there[name]] = 0.0
                continue
            if isinstance(one, IntDistribution):
                found[name] = numbers_of(one, part[:, 0])
                part[:, 0] = to_unit(one, found[name])
            part[~there[name]] = INACTIVE
        return rows

    def neighbours(self, row: np.ndarray) -> np.ndarray:
        """Rows that differ in one category, or in one whole number by one or by a tenth."""
        found = []
        for name, one in self:
            part = self.slices[name]
            if choices := choices_of(one):
                ways = [np.eye(len(choices))[i] for i in range(len(choices)) if not row[part][i]]
            elif isinstance(one, IntDistribution):
                now, far = of_unit(one, row[part][0]), max(1, (one.high - one.low) // 10)
                others = {now - far, now - 1, now + 1, now + far}
                ways = [to_unit(one, value) for value in others if one.low <= value <= one.high]
            else:
                continue
            for way in ways:
                other = row.copy()
                other[part] = way
                found.append(other)
        return np.array(found).reshape(-1, len(row))

    # Sets of values

    def random(self, random: np.random.Generator) -> dict[str, Any]:
        """A set of values, each drawn evenly over its range."""
        return self.decode(random.random(self.columns))

    def grid(self, points: int) -> list[dict[str, Any]]:
        """All combinations of `grid_of(distribution, points)`, each once."""
        found: list[dict[str, Any]] = [{}]
        for name, one in self:
            found = [
                values | {name: value} if self.exists(name, values) else values
                for values in found
                for value in (grid_of(one, points) if self.exists(name, values) else [None])
            ]
        return found

    def corners(self, most: int = 4096) -> Iterator[dict[str, Any]]:
        """Sets of values that have every choice and both ends of every range, for checks.

        All combinations of categories, with all numbers low and all high. Where these are more than
        `most`, the first ones, and others that have each choice at least once.
        """
        lists = {name: choices_of(one) for name, one in self if choices_of(one)}
        combinations: Iterable[tuple] = islice(product(*lists.values()), most // 2)
        if math.prod(map(len, lists.values())) > most // 2:
            longest = max(map(len, lists.values()))
            others = [tuple(one[i % len(one)] for one in lists.values()) for i in range(longest)]
            combinations = chain(combinations, others)
        for chosen in combinations:
            picked = dict(zip(lists, chosen, strict=True))
            for end in ("low", "high"):
                values: dict[str, Any] = {}
                for name, one in self:
                    if self.exists(name, values):
                        values[name] = picked[name] if name in picked else getattr(one, end)
                yield values

    def suggest(self, trial) -> dict[str, Any]:
        """Ask Optuna's trial for the values that exist, in order."""
        values: dict[str, Any] = {}
        for name, one in self:
            if not self.exists(name, values):
                continue
            if choices := choices_of(one):
                values[name] = trial.suggest_categorical(name, choices)
            else:
                whole = isinstance(one, IntDistribution)
                suggest = trial.suggest_int if whole else trial.suggest_float
                values[name] = suggest(name, one.low, one.high, log=one.log)
        return values


# One distribution


def choices_of(one: BaseDistribution) -> tuple:
    """The choices of a category; empty for a number."""
    return one.choices if isinstance(one, CategoricalDistribution) else ()


def columns_of(one: BaseDistribution) -> int:
    """How many columns of a row belong to it."""
    return len(choices_of(one)) or 1


def _scaled_ends(one: BaseDistribution) -> tuple[float, float]:
    """The ends of the scaled range. That of whole numbers reaches half a step beyond them, so that
    each has a part of the interval; that of a single value reaches beyond it, too."""
    half = 0.5 if isinstance(one, IntDistribution) else 0.0
    a, b = one.low - half, one.high + half
    a, b = (math.log(a), math.log(b)) if one.log else (float(a), float(b))
    return (a, b) if a < b else (a - 1.0, b + 1.0)


def to_unit(one: BaseDistribution, value):
    """Where a number, or each of an array of numbers, lies in the unit interval."""
    a, b = _scaled_ends(one)
    return ((np.log(value) if one.log else value) - a) / (b - a)


def numbers_of(one: BaseDistribution, unit):
    """The numbers at points of the unit interval, an array or one."""
    a, b = _scaled_ends(one)
    scaled = a + np.clip(unit, 0.0, 1.0) * (b - a)
    value = np.exp(scaled) if one.log else scaled
    return np.clip(np.rint(value) if isinstance(one, IntDistribution) else value, one.low, one.high)


def of_unit(one: BaseDistribution, unit: float) -> int | float:
    """The number at a point of the unit interval, as Python has it."""
    return (int if isinstance(one, IntDistribution) else float)(numbers_of(one, float(unit)))


def grid_of(one: BaseDistribution, points: int) -> list:
    """All choices, or at most `points` values that lie evenly over the range."""
    if choices := choices_of(one):
        return list(choices)
    whole = isinstance(one, IntDistribution)
    if whole and not one.log and one.high - one.low < points:
        return list(range(one.low, one.high + 1))
    a, b = (math.log(one.low), math.log(one.high)) if one.log else (one.low, one.high)
    values = [a + (b - a) * i / max(1, points - 1) for i in range(points)]
    values = [math.exp(value) for value in values] if one.log else values
    values = [min(one.high, max(one.low, value)) for value in values]
    return list(dict.fromkeys(map(round if whole else float, values)))


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """'did you mean ...?', or `otherwise` if no known name is like it."""
    found = near(name, known)
    return otherwise if found is None else f"did you mean {found!r}?"


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Raise ValueError if `name` is none of the known names of a sampler, a pruner, ..."""
    if name not in known:
        hint = nearest(name, known, f"choose one of {', '.join(known)}")
        raise ValueError(f"unknown {what} {name!r}; {hint}")


def _place(value: Any, choices: tuple) -> int | None:
    """Where a value is among these; True, 1 and 1.0 are different."""
    for place, one in enumerate(choices):
        if type(value) is type(one) and value == one:
            return place
    return None


# From the user's words


def _distribution(name: str, table: Any) -> BaseDistribution:
    """What a table describes; ValueError in one line."""
    say, kinds = f"parameter {name!r}: ", f"one of {', '.join(KINDS)}"
    if not isinstance(table, Mapping):
        raise ValueError(f"{name!r} must be a table: [{name}]")
    for key in table:
        if key not in ENTRIES:
            hint = nearest(key, ENTRIES) or f"choose one of {', '.join(ENTRIES)}"
            raise ValueError(f"parameter {name!r}: unknown entry {key!r}; {hint}")
    if "type" not in table:
        raise ValueError(f"parameter {name!r} needs a type: {kinds}")
    kind, log, choices = table["type"], table.get("log", False), table.get("choices", ())
    if kind not in KINDS:
        raise ValueError(f"{say}type must be {kinds}, got {kind!r}")
    if not isinstance(log, bool):
        raise ValueError(f"{say}log must be true or false, got {log!r}")
    if kind == "category":
        if not isinstance(choices, list | tuple):
            raise ValueError(f"{say}choices must be a list, got {choices!r}")
        if not all(isinstance(choice, int | float | str) for choice in choices):
            raise ValueError(f"{say}choices must be numbers, texts or booleans")
        twice = [one for place, one in enumerate(choices) if one in choices[:place]]
        if len(choices) < 2 or twice:
            why = f"; {twice[0]!r} stands twice" if twice else ""
            raise ValueError(
                f"{say}choices must be at least 2 different values (1, 1.0 and true are equal){why}"
            )
        if "low" in table or "high" in table or log:
            raise ValueError(f"{say}a category has choices, and neither low, high nor log")
        return CategoricalDistribution(choices)
    if choices:
        raise ValueError(f"{say}choices need type = 'category', got {kind!r}")
    for which in ("low", "high"):
        value, takes = table.get(which), int if kind == "int" else int | float
        if not isinstance(value, takes) or isinstance(value, bool) or not math.isfinite(value):
            what = "a whole number" if kind == "int" else "a number"
            raise ValueError(f"{say}{which} must be {what}, got {value!r}")
    low, high = table["low"], table["high"]
    if not low < high:
        raise ValueError(f"{say}low must be below high, got {low:g} and {high:g}")
    if log and low <= 0:
        raise ValueError(f"{say}with log, low must be above 0, got {low:g}")
    return KINDS[kind](low, high, log=log)


def _check_condition(
    name: str, condition: Mapping[str, tuple], known: Mapping[str, BaseDistribution]
) -> None:
    for other, values in condition.items():
        if other not in known or other == name:
            hint = nearest(other, known.keys() - {name}) or "name another parameter of the space"
            raise ValueError(f"parameter {name!r}: when names {other!r}; {hint}")
        of, have = known[other], "a category or an int, which can be compared"
        if choices := choices_of(of):
            have = f"one of {', '.join(map(repr, choices))}"
        elif isinstance(of, IntDistribution):
            have = "in its range"
        for value in values:
            whole = isinstance(of, IntDistribution) and type(value) is int
            if _place(value, choices) is None and not (whole and of.low <= value <= of.high):
                raise ValueError(
                    f"parameter {name!r}: when {other} = {value!r} never holds; it must be {have}"
                )


def _in_order(
    found: dict[str, BaseDistribution], when: Mapping[str, Mapping[str, tuple]]
) -> dict[str, BaseDistribution]:
    """The parameters, each after those that its condition names."""
    ordered: dict[str, BaseDistribution] = {}
    while len(ordered) < len(found):
        ready = {
            name: one
            for name, one in found.items()
            if name not in ordered and when.get(name, {}).keys() <= ordered.keys()
        }
        if not ready:
            rest = ", ".join(repr(name) for name in found if name not in ordered)
            raise ValueError(f"the conditions of {rest} depend on each other in a circle")
        ordered |= ready
    return ordered
