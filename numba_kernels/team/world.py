"""The world: what the processes of MPI.COMM_WORLD have in common before they have a team.

Making a team is itself a wait for all ranks, and one of them may fail before it comes to that. So
the first team that is made of all ranks makes this one first: a mailbox, and a communicator for
teams to be made from. Like a team it fails, tells, and recovers; it has no collectives of its own.
"""

from __future__ import annotations

import os

from mpi4py import MPI

from ..shared import window
from . import recovery
from .mailbox import Mailbox
from .waiting import SETUP_SECONDS, Waiting

_world: World | None = None


class World(Waiting):
    """Made once in a process, by all ranks together."""

    def __init__(self):
        super().__init__(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, None)
        self._doing = "making a team"
        self.comm = self._duplicate(MPI.COMM_WORLD)
        self._mailbox = Mailbox(self._duplicate(MPI.COMM_WORLD))
        self._processes = processes(self)

    def ready(self) -> None:
        """Before a team is made: raise what is wrong, or mend it if that is known already."""
        if self._failure is None:
            try:
                self._heed()
            except BaseException as error:
                self.abort(error)
                raise
        elif Mailbox.cell and not self._renews:
            raise self._failure
        else:
            recovery.recover(self, SETUP_SECONDS)
        self._doing = "making a team"
        self._count += 1
        self._waits_in = (self._count, 0, 0)


def world_of(comm: MPI.Comm) -> World | None:
    """The world, for making a team of `comm`; None where there is none, and none can be made."""
    global _world
    if MPI.COMM_WORLD.size == 1:
        return None
    if _world is None and MPI.Comm.Compare(comm, MPI.COMM_WORLD) in (MPI.IDENT, MPI.CONGRUENT):
        _world = World()
    return _world


def processes(team) -> dict[int, int]:
    """The pids of the other ranks that run where this one can see them. Collective."""
    table = team._gather([window.node_token(), os.getpid()])
    here = table[:, 0] == table[team.rank, 0]
    return {r: int(table[r, 1]) for r in range(team.size) if here[r] and r != team.rank}
