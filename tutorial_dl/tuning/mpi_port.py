"""Messages between the coordinator and the ranks of cells over MPI, without a blocking call.

The coordinator sends to every rank of a cell, so that its ranks need not tell each other. Of a
cell, only the first rank answers. A request to choose goes to the first rank that is left, alone.
"""

from __future__ import annotations

import time

from mpi4py import MPI

from numba_kernels.team.stall import has_ended

from .coordinator import Port
from .lifelines import Lifelines

TAG = 7
PAUSE = 0.001  # seconds between two looks
LOST = 30.0  # seconds within which a message must have arrived once it is announced


class Mail:
    """This rank's end: messages to and from ranks of `comm`."""

    def __init__(self, comm: MPI.Comm):
        self.comm = comm
        self.sent: list[MPI.Request] = []

    def send(self, rank: int, message: dict) -> None:
        self.flush(0)
        self.sent.append(self.comm.isend(message, rank, TAG))

    def flush(self, seconds: float) -> None:
        """Wait until what was sent has left, at most so long."""
        end = time.monotonic() + seconds
        while left := [request for request in self.sent if not request.Test()]:
            self.sent = left
            if time.monotonic() >= end:
                return
            time.sleep(PAUSE)
        self.sent = []

    def receive(self) -> tuple[int, dict] | None:
        """The next message and its sender; None if there is none now."""
        status = MPI.Status()
        if (found := self.comm.improbe(MPI.ANY_SOURCE, TAG, status)) is None:
            return None
        request, end = found.irecv(), time.monotonic() + LOST
        while not (done := request.test())[0]:
            if time.monotonic() > end:  # its sender was killed within it
                return None
            time.sleep(0)
        return status.Get_source(), done[1]


class MpiPort(Port):
    """The coordinator's port.

    Args:
        team: All ranks; this one is rank 0.
        comm: A communicator of theirs, for messages.
        members: The ranks of each cell.
        lines: How the ends of ranks on other machines are noticed; None if there are none.
    """

    def __init__(
        self, team, comm: MPI.Comm, members: list[list[int]], lines: Lifelines | None = None
    ):
        self.team, self.mail, self.lines = team, Mail(comm), lines
        self.members = dict(enumerate(map(list, members)))
        self.cell_of = {rank: cell for cell, ranks in self.members.items() for rank in ranks}
        self.asked: dict[int, int] = {}  # cell -> its rank that chooses
        self.ready: list[int] = []  # cells whose rank has ended while it chose; others are left

    def now(self) -> float:
        return time.monotonic()

    def send(self, cell: int, message: dict) -> None:
        left = [rank for rank in self.members.get(cell, ()) if not self._has_ended(rank)]
        if message["what"] == "choose":
            left = left[:1]
            self.asked.update((cell, rank) for rank in left)
        for rank in left:
            self.mail.send(rank, message)

    def _has_ended(self, rank: int) -> bool:
        return (self.lines is not None and rank in self.lines.ended) or has_ended(
            self.team.pid(rank)
        )

    def receive(self, seconds: float) -> tuple[int, dict] | None:
        end = time.monotonic() + seconds
        while (found := self.mail.receive()) is None:
            if self.ready:
                return self.ready.pop(), {"what": "ready", "known": 0}
            if time.monotonic() >= end:
                return None
            time.sleep(PAUSE)
        rank, message = found
        cell = self.cell_of[rank]
        self.asked.pop(cell, None)
        if "ranks" in message and cell in self.members:  # those that are left
            self.members[cell] = message["ranks"]
        return cell, message

    def lost(self) -> list[int]:
        self.ready += [cell for cell, rank in self.asked.items() if self._has_ended(rank)]
        for cell in self.ready:
            self.asked.pop(cell, None)
        return [cell for cell, ranks in self.members.items() if all(map(self._has_ended, ranks))]

    def drop(self, cell: int) -> None:
        self.send(cell, {"what": "end"})  # it may still answer, and must not wait for more
        self.members.pop(cell, None)
        self.asked.pop(cell, None)
