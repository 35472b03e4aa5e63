"""A search on the ranks of an MPI job: rank 0 coordinates, the others choose and train in cells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext

from .cell import Cell, MpiLink
from .coordinator import Coordinator, Refused
from .lifelines import connected
from .mpi_port import MpiPort
from .search import Search


def run(
    search: Search, team, announce: Callable[[str, dict | None], None] = lambda text, row: None
):
    """Search on the ranks of `team`. Collective; returns (study, outcome) on rank 0, else None.

    Raises:
        Refused: On rank 0, if nothing can be trained as asked; the other ranks return.
    """
    members = search.members(each := search.ranks_each(team.size), 1)
    study = None
    if team.rank == 0:
        study = search.study()  # an error here ends all ranks before they split
    comm = team.duplicate(team.comm)
    line = connected(team)
    cell = Cell.for_rank(search, team, members, MpiLink(team, comm, line))
    if team.rank:
        cell.serve()
        return None
    port = MpiPort(team, comm, members, line)
    coordinator = Coordinator(
        study, port, search.cells, search.folds, search.deadline, announce, ranks=each
    )
    with study, nullcontext() if line is None else closing(line):
        try:
            outcome = coordinator.run()
        except Refused:
            port.mail.flush(5.0)
            raise
        port.mail.flush(5.0)
    return study, outcome
