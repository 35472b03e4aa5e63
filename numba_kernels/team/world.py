"""The world: the mailbox and communicator of all processes of MPI.COMM_WORLD, to make teams from.

Making a team is itself a wait for all ranks, and a rank may fail before it gets there. So the first
team of all ranks makes the world first: a mailbox, and a communicator from which teams are made.
Like a team it reports failures and recovers, but it has no collectives.

Only a team of all ranks needs the whole world. While a part of them makes a team of its own, the
world's mailbox reports the failures and ends of these ranks and of no others. Each rank counts the
letters about failures that it has posted here, and a team that recovers settles those of its ranks:
a group that has recovered makes teams again, whatever became of the rest of the world.
"""

from __future__ import annotations

import os

from mpi4py import MPI

from ..errors import TeamError
from ..shared import window
from . import recovery
from .mailbox import RECOVERS, Mailbox
from .siblings import Begun
from .waiting import SETUP_SECONDS, Waiting

_world: World | None = None


class World(Waiting):
    """The world. It is made once per process, by all ranks together."""

    regrouped = False  # whether a team of this rank has recovered since the world failed

    def __init__(self):
        super().__init__(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, None)
        self.doing = "making a team"
        with Begun():
            self.comm = self.duplicate(MPI.COMM_WORLD)
            self.letters = Mailbox(self.duplicate(MPI.COMM_WORLD))
        self.processes = processes(self)

    def ready(self) -> None:
        """Before a team is made, raise a new failure, or recover from one already raised."""
        if self.failure is None:
            try:
                self.heed()
            except BaseException as error:
                self.abort(error, heard=True)
                raise
        elif Mailbox.cell and not self.renews:
            raise self.failure
        else:
            recovery.recover(self, SETUP_SECONDS)
        self.doing = "making a team"
        self.count += 1
        self.waits_in = (self.count, 0, 0)

    def abort(self, error: BaseException, heard: bool = False) -> None:
        if self.regrouped and not self.renews:
            self.failure = None  # its group has settled that one, and must hear of this one
        self.regrouped = False
        super().abort(error, heard)

    def heed_for(self, part) -> None:
        if len(part.mates) == self.size:
            self.heed()
        else:
            super().heed_for(part)

    def settle(self, part, told: list[int]) -> None:
        """The team `part` has recovered: the first `told` letters of its ranks no longer count."""
        self.letters.settled |= zip(ranks_in_world(part.comm), told, strict=True)
        self.regrouped = self.failure is not None and RECOVERS not in self.letters.said

    def recover_with(self, team) -> None:
        """Recover while `team`, of all ranks, does: on some of them the world has failed."""
        if self.failure is None:
            self.abort(TeamError("another rank's world has failed"))
        self.heeds = team
        try:
            recovery.recover(self, SETUP_SECONDS)
        finally:
            self.heeds = None

    def _agree(self) -> None:
        self.settle(self, self.gather([self.letters.told])[:, 0].tolist())


def world_of(comm: MPI.Comm) -> World | None:
    """Return the world for making a team of `comm`; None if there is none and none can be made."""
    global _world
    if comm.size == 1:
        return None
    if _world is None and has_all_ranks(comm):
        _world = World()
    return _world


def has_all_ranks(comm: MPI.Comm) -> bool:
    return MPI.Comm.Compare(comm, MPI.COMM_WORLD) != MPI.UNEQUAL


def ranks_in_world(comm: MPI.Comm) -> list[int]:
    """Return the ranks of `comm`, in its order, as MPI.COMM_WORLD numbers them."""
    return comm.group.Translate_ranks(None, MPI.COMM_WORLD.group)


def processes(team) -> dict[int, int]:
    """Return {rank: pid} of the other ranks on this machine. Collective."""
    table = team.gather([window.node_token(), os.getpid()])
    here = table[:, 0] == table[team.rank, 0]
    return {r: int(table[r, 1]) for r in range(team.size) if here[r] and r != team.rank}
