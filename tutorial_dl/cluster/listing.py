"""Clusters of this user as a list, and stopping one by its name, from a notebook or a terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from . import registry


class Entry(NamedTuple):
    """One cluster: state is "running", "starting" or "on HOST"; `seconds` since it was started."""

    name: str
    n: int
    profile: str
    host: str
    state: str
    seconds: float
    job: str | None


def list() -> list[Entry]:
    """All clusters of this user that run, oldest first; of dead ones, what is left is removed."""
    return [
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
    ]


def stop(name: str | None = None) -> str:
    """Stop the cluster `name`, or the only one there is, for all who use it; returns its name.

    Raises ClusterError if there is none, or several, or if it can only be stopped elsewhere.
    """
    record = registry.choose(name)
    registry.end(record)
    return record.name
