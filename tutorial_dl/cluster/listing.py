"""List this user's clusters, and stop one by name, from a notebook or a terminal."""

import time
from pathlib import Path
from typing import NamedTuple

from . import registry
from .one_line import one_line


class Entry(NamedTuple):
    """One cluster: `state` is "running", "starting" or "on HOST"; `seconds` since its start."""

    name: str
    n: int
    profile: str
    host: str
    state: str
    seconds: float
    job: str | None


def list() -> list[Entry]:
    """All running clusters of this user, oldest first; removes the files of dead ones."""
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


@one_line
def stop(name: str | None = None) -> str:
    """Stop the cluster `name`, or the only one there is, for all its clients; returns its name.

    Raises:
        ClusterError: If there is none, or several, or it can only be stopped on another machine.
    """
    record = registry.choose(name)
    registry.end(record)
    return record.name
