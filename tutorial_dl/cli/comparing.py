"""`python -m tutorial_dl compare`: results of several trainings, in one table and one figure."""

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..config import OPTIONS
from ..runtime.history import History, in_words
from ..runtime.history_figure import curves
from .files import check_figure

SHOWN = ("loss", "val_loss", "val_accuracy", "samples_per_second", "seconds")
WRITTEN = ("output", "checkpoint")  # tables of options that say where results go


def read(file: str) -> dict[str, Any]:
    """A result that `train --json` has written; ValueError for anything else."""
    try:
        result = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:  # no text, or no JSON
        result = None
    if not isinstance(result, dict) or not {"history", "config", "seconds"} <= result.keys():
        raise ValueError(f"{file} is no result of `train --json FILE`")
    return result


def differing(results: dict[str, dict]) -> dict[str, list]:
    """The options in which results differ: by name, one value for each result.

    None stands where a strategy does not take the option, which counts as its default.
    """
    options = [
        {
            name: value
            for table, values in one["config"].items()
            if table not in WRITTEN
            for name, value in values.items()
        }
        | {"ranks": one["ranks"]}
        for one in results.values()
    ]
    names = dict.fromkeys(name for one in options for name in one)
    default = {name: OPTIONS[name].default if name in OPTIONS else None for name in names}
    return {
        name: [one.get(name) for one in options]
        for name in names
        if len({str(one.get(name, default[name])) for one in options}) > 1
    }


def compare(files: list[str], figure: str) -> None:
    """Print a row for each result, with the options in which they differ, and draw the curves."""
    check_figure(figure)
    stems = [Path(file).stem for file in files]
    names = stems if len(set(stems)) == len(files) else files
    if len(set(names)) < len(files):
        raise ValueError(f"compare got {max(names, key=names.count)} twice")
    results = {name: read(file) for name, file in zip(names, files, strict=True)}
    options = differing(results)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("result")
    for name in options:
        table.add_column(name.replace("_", " "))
    shown = [name for name in SHOWN if any(one.get(name) is not None for one in results.values())]
    for name in shown:
        table.add_column(name.replace("_per_", "/").replace("_", " "), justify="right")
    for row, (name, one) in enumerate(results.items()):
        values = [values[row] for values in options.values()]
        cells = [in_words(n, one[n]) if one.get(n) is not None else "–" for n in shown]
        words = [name, *("–" if v is None else str(v) for v in values), *cells]
        table.add_row(*map(escape, words))
    console = Console()
    console.print(table) if console.is_terminal else Console(width=1000).print(table)
    histories = {name: History(one["history"]) for name, one in results.items()}
    curves(histories).savefig(figure, bbox_inches="tight")
    print(f"figure: {figure}")
