"""News of failures among the ranks of a team, read only by those who wait.

A rank that fails posts one letter to every other rank and never waits for it to be read. Whoever
waits, anywhere, looks into its mailbox every few milliseconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

BYTES = 1000
TAG = 1
FAILED, FOLLOWED, MISMATCH = range(3)


@dataclass(frozen=True)
class Letter:
    """`kind`: FAILED (a cause), FOLLOWED (failed because another did), MISMATCH (of calls)."""

    rank: int
    kind: int
    text: str


class Mailbox:
    """Letters over a communicator of their own, so that they can't be taken for data."""

    def __init__(self, comm: MPI.Comm):
        self.comm = comm
        self.letters: dict[int, Letter] = {}
        self.sent: list[tuple[MPI.Request, np.ndarray]] = []

    def post(self, kind: int, text: str) -> None:
        """Send one letter to every other rank; once in a team's life."""
        if self.sent:
            return
        content = text.encode()[: BYTES - 1]
        envelope = np.frombuffer(bytes([kind]) + content, np.uint8)
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self.sent.append((self.comm.Isend([envelope, MPI.BYTE], rank, TAG), envelope))

    def collect(self) -> dict[int, Letter]:
        """Letters that have come so far, by rank. Does not wait."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, TAG, status):
            content = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            request = self.comm.Irecv([content, MPI.BYTE], status.source, TAG)
            while not request.Test():  # it is here: this only copies
                time.sleep(0)
            text = content[1:].tobytes().decode(errors="replace")
            self.letters[status.source] = Letter(status.source, int(content[0]), text)
        return self.letters

    def settle(self, seconds: float) -> list[Letter]:
        """After a failure: wait until all others have written too, or `seconds` have passed.

        Then every rank knows every cause, and no rank is still inside a call of the team.
        """
        end = time.monotonic() + seconds
        while len(self.collect()) < self.comm.size - 1 and time.monotonic() < end:
            time.sleep(0.001)
        while not all(request.Test() for request, _ in self.sent) and time.monotonic() < end:
            time.sleep(0.001)
        return sorted(self.letters.values(), key=lambda letter: letter.rank)
