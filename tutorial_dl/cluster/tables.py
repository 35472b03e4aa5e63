"""Tables as aligned text and HTML for notebooks; list this user's clusters, and stop one.

The HTML fits JupyterLab's light and dark theme. It has no script: a notebook that is opened again
shows it as it was.
"""

from __future__ import annotations

import builtins
import html
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from . import registry
from .registry import short_tracebacks

# Colours of text: for a light and for a dark page. Each has a contrast of 4.5 or more with every
# background that a table has in JupyterLab's themes. A colour never says more than the words do.
COLOURS = {
    "busy": ("#17541c", "#81c995"),
    "waiting": ("#0d47a1", "#9ecbff"),
    "idle": ("#444444", "#c4c4c4"),
    "bad": ("#a31515", "#ffb4ab"),
    "odd": ("#763c00", "#ffc46b"),
}


LIGHT, DARK = (" ".join(f"--{k}: {v[page]};" for k, v in COLOURS.items()) for page in (0, 1))
STYLE = f"""
.tdl {{ {LIGHT} overflow-x: auto; }}
body[data-jp-theme-light="false"] .tdl, body.vscode-dark .tdl {{ {DARK} }}
.tdl table {{ margin: 4px 0; }}
.tdl th, .tdl td {{ text-align: left !important; white-space: nowrap; vertical-align: top; }}
.tdl th {{ white-space: normal; vertical-align: bottom; }}
.tdl td.words {{ white-space: normal; min-width: 10em; max-width: 26em; }}
.tdl code {{ color: inherit; background: none !important; padding: 0 !important; }}
.tdl code {{ white-space: normal; overflow-wrap: anywhere; }}
.tdl .note {{ color: var(--idle); }}
{" ".join(f".tdl .{name} {{ color: var(--{name}); font-weight: 600; }}" for name in COLOURS)}
.tdl .bar {{ display: flex; width: 9em; height: 0.8em; margin-top: 0.2em; color: var(--idle);
  border: 1px solid; }}
.tdl .bar i:nth-child(1) {{ background: var(--busy); }}
.tdl .bar i:nth-child(2) {{ background: repeating-linear-gradient(
  45deg, var(--odd) 0 2px, transparent 2px 4px); }}
"""


class Cell(str):
    """A cell's words; in HTML with a colour (`kind`), as `code`, or below a bar (`above`)."""

    def __new__(cls, words: str, kind: str = "", code: bool = False, above: str = "") -> Cell:
        cell = super().__new__(cls, words)
        inner = html.escape(words)
        inner = f"<code>{inner}</code>" if code and words else inner
        inner = f'<span class="{kind}">{inner}</span>' if kind else inner
        wide = ' class="words"' if kind or code else ""
        cell.html = f"<td{wide}>{above}{inner}</td>"
        return cell


def text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns."""
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, each, widths)).rstrip() for each in table]


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table in HTML."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(cell.html for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def page(*parts: str, style: str = "") -> str:
    return f'<style>{STYLE}{style}</style><div class="tdl">{"".join(parts)}</div>'


NONE = "no cluster is running"


class Entry(NamedTuple):
    """One cluster: `state` is "running", "starting" or "on HOST"; `seconds` since its start."""

    name: str
    n: int
    profile: str
    host: str
    state: str
    seconds: float
    job: str | None


class Entries(builtins.list):
    """A list of `Entry` that shows itself as a table."""

    def _table(self) -> tuple[list[str], list[list[Cell]]]:
        head = ["name", "engines", "profile", "host", "state", "age", "job"]
        rows = [
            [*map(str, each[:5]), age(each.seconds), f"job {each.job}" if each.job else ""]
            for each in self
        ]
        columns = len(head) if any(entry.job for entry in self) else len(head) - 1
        return head[:columns], [[*map(Cell, row[:columns])] for row in rows]

    def __repr__(self) -> str:
        return "\n".join(text(*self._table())) if self else NONE

    def _repr_html_(self) -> str:
        return page(table(*self._table())) if self else f"<div>{NONE}</div>"


def age(seconds: float) -> str:
    """A duration in its two largest units: "3 h 20 min"."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def list() -> Entries:
    """All running clusters of this user, oldest first; removes the files of dead ones."""
    return Entries(
        Entry(
            record.name,
            record.n,
            Path(record.profile).stem,
            record.host,
            record.state(),
            time.time() - record.started,
            record.job["number"] if record.job else None,
        )
        for record in registry.load_all()
    )


@short_tracebacks
def stop(name: str | None = None) -> str:
    """Stop the cluster `name`, or the only one there is, for all its clients; returns its name.

    Raises:
        ClusterError: If there is none, or several, or it can only be stopped on another machine.
    """
    record = registry.choose(name)
    registry.end(record)
    return record.name
