"""List this user's clusters, and stop one by name, from a notebook or a terminal."""

import builtins
import html
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from . import registry, tables
from .registry import short_tracebacks

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

    def words(self) -> tuple[str, ...]:
        job = f"job {self.job}" if self.job else ""
        return (
            *(self.name, str(self.n), self.profile, self.host, self.state),
            *(age(self.seconds), job),
        )


class Entries(builtins.list):
    """A list of `Entry` that shows itself as a table."""

    HEAD = ("name", "engines", "profile", "host", "state", "age", "job")

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        columns = len(self.HEAD) if any(entry.job for entry in self) else len(self.HEAD) - 1
        return self.HEAD[:columns], [entry.words()[:columns] for entry in self]

    def __repr__(self) -> str:
        return "\n".join(tables.text(*self._table())) if self else NONE

    def _repr_html_(self) -> str:
        if not self:
            return f"<div>{html.escape(NONE)}</div>"
        head, rows = self._table()
        return tables.page(tables.table(head, [map(tables.cell, row) for row in rows]))


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
