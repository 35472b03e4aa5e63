"""What runs on an engine of a notebook's cluster: a rank of a cell, kept between trainings.

The notebook imports this file, too, to name its functions, and must not load MPI: it would leave
MPI's shared memory behind when it is killed.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from .coordinator import Link
from .search import Search

if TYPE_CHECKING:
    from .cell import Cell

_cell: Cell | None = None  # of this engine, in the present search


class EngineLink(Link):
    """Reports go with the reply's data; the notebook stops a training by an interrupt."""

    ends_with_interrupt = False

    def __init__(self):
        self.reports: dict[int, float] = {}

    def send(self, message: dict) -> None:
        from ipyparallel.datapub import publish_data

        self.reports[message["epoch"]] = message["value"]
        publish_data({"reports": dict(self.reports)})


def begin(search: Search, members: list[list[int]]) -> None:
    """Make the cells of a search, of the ranks in `members`, on all engines. Collective."""
    global _cell
    from numba_kernels.team.team import Team

    from .cell import Cell

    end()
    _cell = Cell.for_rank(search, Team(), members, EngineLink())


def check() -> dict[str, Any]:
    """Whether this rank's cell is ready to train: a message for the coordinator."""
    why = _cell.check()
    return {"what": "refused", "why": why} if why else {"what": "ready"}


def choose(request: dict[str, Any]) -> dict[str, Any]:
    """The set of values that this engine chooses; a message for the coordinator."""
    return _cell.choose(request)


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Train a task on this rank's cell; returns the message of its end."""
    _cell.link.reports = {}
    # An interrupt may come late. It must not break what follows the training, up to the reply; then
    # the kernel puts its own handler back.
    signal.signal(signal.SIGINT, _cell.interrupt)
    return _cell.train(task)


def end() -> None:
    """Forget the cell, its data and its team."""
    global _cell
    _cell = None
