"""The world: the mailbox and communicator of all processes of MPI.COMM_WORLD, to make teams from.

Making a team is itself a wait for all ranks, and a rank may fail before it gets there. So the first
team of all ranks makes the world first: a mailbox, and a communicator from which teams are made.
Like a team it reports failures and recovers, but it has no collectives.
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
    """The world. It is made once per process, by all ranks together."""

    def __init__(self):
        super().__init__(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, None)
        self._doing = "making a team"
        self.comm = self._duplicate(MPI.COMM_WORLD)
        self._mailbox = Mailbox(self._duplicate(MPI.COMM_WORLD))
        self._processes = processes(self)

    def ready(self) -> None:
        """Before a team is made, raise a new failure, or recover from one already raised."""
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
    """Return the world for making a team of `comm`; None if there is none and none can be made."""
    global _world
    if MPI.COMM_WORLD.size == 1:
        return None
    if _world is None and MPI.Comm.Compare(comm, MPI.COMM_WORLD) in (MPI.IDENT, MPI.CONGRUENT):
        _world = World()
    return _world


def processes(team) -> dict[int, int]:
    """Return {rank: pid} of the other ranks on this machine. Collective."""
    table = team._gather([window.node_token(), os.getpid()])
    here = table[:, 0] == table[team.rank, 0]
    return {r: int(table[r, 1]) for r in range(team.size) if here[r] and r != team.rank}
