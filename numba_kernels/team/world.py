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

import numpy as np
from mpi4py import MPI

from ..errors import TeamError
from ..shared import window
from . import recovery
from .mailbox import RECOVERS, Mailbox
from .siblings import Begun
from .waiting import SETUP_SECONDS, Waiting

_world: World | None = None


class World(Waiting):
    """The world. It is made once per process, by all ranks together (`make`)."""

    regrouped = False  # whether a team of this rank has recovered since the world failed
    _complete = False  # `processes` is known

    def __init__(self):
        super().__init__(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, None)
        self._own: list[tuple[MPI.Comm, MPI.Request]] = []  # duplicates of MPI.COMM_WORLD

    def make(self) -> None:
        """Make the communicator and the mailbox, or go on where an interrupt ended this.

        Other ranks do not learn of that interrupt, as there is no mailbox yet: they wait for this
        rank to go on.
        """
        if self.letters is not None:
            return
        self.failure, self.doing = None, "making a team"
        whole, seconds = MPI.COMM_WORLD, SETUP_SECONDS
        with Begun():
            self.comm = self.duplicate_number(0, self._own, whole, seconds)
            self.letters = Mailbox(self.duplicate_number(1, self._own, whole, seconds))

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
        if not self._complete:
            try:
                self.processes, self._complete = processes(self), True
            except BaseException as error:
                self.abort(error, heard=True)  # the next call recovers, which completes it
                raise
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
        table = self.gather([self.letters.told, *here()])
        self.settle(self, table[:, 0].tolist())
        self.processes, self._complete = _beside(self.rank, table[:, 1:]), True


def world_of(comm: MPI.Comm) -> World | None:
    """Return the world for making a team of `comm`; None if there is none and none can be made."""
    global _world
    if comm.size == 1:
        return None
    if (_world is None or _world.letters is None) and has_all_ranks(comm):
        _world = _world or World()
        _world.make()
    return _world if _world is not None and _world.letters is not None else None


def has_all_ranks(comm: MPI.Comm) -> bool:
    return MPI.Comm.Compare(comm, MPI.COMM_WORLD) != MPI.UNEQUAL


def ranks_in_world(comm: MPI.Comm) -> list[int]:
    """Return the ranks of `comm`, in its order, as MPI.COMM_WORLD numbers them."""
    return comm.group.Translate_ranks(None, MPI.COMM_WORLD.group)


def processes(team) -> dict[int, int]:
    """Return {rank: pid} of the other ranks on this machine. Collective."""
    return _beside(team.rank, team.gather(here()))


def here() -> list[int]:
    """Return what tells this process and its machine from all others."""
    return [window.node_token(), os.getpid()]


def _beside(rank: int, table: np.ndarray) -> dict[int, int]:
    """Return {rank: pid} of those that share the machine of `rank`; `here()` of each is a row."""
    return {r: int(pid) for r, (at, pid) in enumerate(table) if at == table[rank, 0] and r != rank}
