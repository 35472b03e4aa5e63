"""What must be the same where a search goes on: as values that JSON can hold, and compared."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

from optuna.distributions import distribution_to_json

from .space import Space


def described(space: Space) -> dict[str, Any]:
    """A space as values that JSON can hold: Optuna's texts, and conditions."""
    return {
        name: [distribution_to_json(one), {n: list(v) for n, v in space.when.get(name, {}).items()}]
        for name, one in space
    }


def of_text(text: str) -> Space:
    """The space in a study that was written before spaces were Optuna's distributions."""
    tables = {}
    for call in ast.parse(text, mode="eval").body.elts:
        given = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
        name = given.pop("name")
        tables[name] = {entry: value for entry, value in given.items() if value not in (None, ())}
    return Space.of(tables)


def in_tables(about: Mapping[str, Any]) -> dict[str, Any]:
    """`about` with a table for each parameter of its space, which `described` or an earlier
    version wrote."""
    space, tables = about["space"], {}
    space = described(of_text(space)) if isinstance(space, str) else space
    for name, (text, when) in space.items():
        one = json.loads(text)
        kind = {"type": one["name"].removesuffix("Distribution").lower()}
        tables[name] = kind | one["attributes"] | {"when": when}
    return {**about, "space": tables}


def differences(before: Mapping, now: Mapping, where: str = "") -> Iterator[str]:
    """In words, each value that is another one now; tables are compared entry by entry."""
    for name in before | now:
        one, other = before.get(name), now.get(name)
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differences(one, other, f"{where}{name}: ")
        elif isinstance(one, Mapping) or isinstance(other, Mapping):
            yield f"{where}{name} is {'new' if one is None else 'gone'}"
        else:
            was, is_ = ("not given" if value is None else value for value in (one, other))
            yield f"{where}{name} was {was}, is {is_}"
