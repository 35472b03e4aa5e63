"""A search on the ranks of an MPI job: rank 0 coordinates, the others choose and train in cells."""

from __future__ import annotations

from collections.abc import Callable

from .cell import Cell, MpiLink
from .coordinator import Coordinator, Refused
from .lifelines import connected
from .mpi_port import MpiPort
from .search import Search


def run(search: Search, team, tell: Callable[[str, dict | None], None] = lambda text, row: None):
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
    cell = Cell.of(search, team, members, MpiLink(team, comm, line))
    if team.rank:
        cell.serve()
        return None
    port = MpiPort(team, comm, members, line)
    coordinator = Coordinator(
        study, port, search.cells, search.folds, search.deadline, tell, ranks=each
    )
    try:
        outcome = coordinator.run()
        port.mail.flush(5.0)
    except BaseException as error:
        if isinstance(error, Refused):
            port.mail.flush(5.0)
        study.discard()  # the file stays, unless it is new and nothing was tried
        raise
    finally:
        study.close()
        if line is not None:
            line.close()
    return study, outcome
