"""From a set of values to the configuration of a training, and whether every set makes one."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

from optuna.distributions import BaseDistribution, IntDistribution

from ..config import COMPONENTS, OPTIONS, RunConfig
from ..user_function import find, is_reference, parsed, source_of
from .space import Space, choices_of, nearest

# Options of a training that no trial may change
FIXED = ("data", "features", "labels", "validation", "cache", "model_arguments", "ranks")
FIXED_TABLES = ("checkpoint", "output")


def searchable() -> list[str]:
    """The options of `train` that a space may have."""
    return [
        name
        for name, one in OPTIONS.items()
        if name not in FIXED and one.table not in FIXED_TABLES and one.table in COMPONENTS
    ]


def config_of(base: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The configuration of the trial with these values; the others are those of `base`.

    Options that the trial's strategy does not take are left out where they are of `base`.
    """
    given = {n: v for n, v in base.values().items() if v is not None and v is not False}
    options = {name: value for name, value in values.items() if name in OPTIONS}
    if options.get("strategy", base.strategy.strategy) != base.strategy.strategy:
        of_rule = {n for n, one in OPTIONS.items() if one.table == "strategy"} | {"upward"}
        given = {name: value for name, value in given.items() if name not in of_rule}
    arguments = {name: value for name, value in values.items() if name not in OPTIONS}
    if arguments:
        known = json.loads(base.data.model_arguments or "{}")
        given["model_arguments"] = json.dumps(known | arguments)
    return RunConfig.of(**given | options)


def check(space: Space, base: RunConfig, ranks: int) -> None:
    """Raise ValueError, in one line, unless every set of values makes a training on `ranks` ranks.

    A name must be an option of `train`, or an argument of the model's function. Every choice and
    both ends of every range must be values that it takes.
    """
    from ..training.ranks import layout_of, ranks_of

    known, taken = searchable(), None
    for name, one in space:
        if name in known:
            _check_option(name, one)
            continue
        if name in OPTIONS:
            raise ValueError(f"a search can't change {name!r}: give {OPTIONS[name].flag}")
        if taken is None:
            taken = arguments_of(base.data.model)
        if taken is not True and name not in taken:
            hint = nearest(name, [*known, *taken])
            words = f"takes {', '.join(taken)}" if taken else "takes no arguments"
            raise ValueError(
                f"parameter {name!r} is neither an option of train nor an argument of model "
                f"{base.data.model!r}, which {words}" + (f"; {hint}" if hint else "")
            )
    for values in space.corners():
        try:
            made = config_of(base, values)
            made.check()
            need = ranks_of(made) if not made.with_master else None
            if made.strategy.strategy == "serial" and ranks > 1:
                raise ValueError(f"strategy 'serial' uses 1 rank, a training has {ranks}")
            if made.with_master:
                layout_of(made, ranks)
            elif need not in (None, ranks):
                raise ValueError(f"needs {need} ranks, a training has {ranks}")
        except ValueError as error:
            said = ", ".join(f"{name} = {value!r}" for name, value in values.items())
            raise ValueError(
                f"the space has sets that can't be trained, as {said}: {error}"
            ) from None


def sets_of_each_model(space: Space) -> Iterator[dict[str, Any]]:
    """A set of values for each choice of the model, or the first set, for checks."""
    seen = set()
    for values in space.corners():
        if (model := values.get("model")) not in seen:
            seen.add(model)
            yield values


def _check_option(name: str, one: BaseDistribution) -> None:
    option, choices = OPTIONS[name], choices_of(one)
    kind = int if isinstance(one, IntDistribution) else float
    if not choices and option.kind is not kind:
        wanted = {float: "'float'", int: "'int'"}.get(option.kind, "'category'")
        raise ValueError(f"parameter {name!r}: type must be {wanted}, got {kind.__name__!r}")
    for value in choices or (one.low, one.high):
        try:
            option.checked(value)
        except ValueError as error:
            raise ValueError(f"parameter {name!r}: {error}") from None


def arguments_of(model: str) -> list[str] | bool:
    """The names of the arguments that a model's function takes; True if it takes any.

    The function is looked up in the source of its file, because an import of Keras takes seconds.
    """
    if not is_reference(model):
        return []
    where, _, name = model.rpartition(":")
    if (path := source_of(where)) is not None:
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef) and node.name == name and not node.decorator_list:
                of = node.args
                return bool(of.kwarg) or [a.arg for a in (*of.args, *of.kwonlyargs)]
    taken = inspect.signature(find(model, "model")).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in taken):
        return True
    return [one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
