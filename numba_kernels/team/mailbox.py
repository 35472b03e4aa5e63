"""News among the ranks of a team, read only by those who wait.

A rank that has news posts a letter and never waits for it to be read. Whoever waits, anywhere,
looks into its mailbox every few milliseconds.

A team that failed and was made usable again is in its next *generation*. Ranks pass from one to the
next at different moments, so every letter says to which generation it belongs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from mpi4py import MPI

TEXT = 1000  # bytes of a letter's text at most: with its head it travels at once
HEAD = 6 * 8
TAG = 1


class Kind(IntEnum):
    """What a letter says of its sender."""

    FAILED = 0  # it raised an exception of its own: a cause
    FOLLOWED = 1  # it failed because another rank did
    MISMATCH = 2  # it found that another rank called something else
    AGAIN = 3  # it failed once more, before the team was recovered
    RECOVERS = 4  # it has left all calls of this generation and is ready for the next one
    WAITS = 5  # it has been waiting for some time, in `call`
    ENDED = 6  # it dropped the team, or its program ended, after `call`


FAILED, FOLLOWED, MISMATCH, AGAIN, RECOVERS, WAITS, ENDED = Kind
LEFT = "it left the team, or its program ended, without this call"


@dataclass(frozen=True)
class Letter:
    """`cell`: the number of the notebook's cell that its sender was in; 0 where there is none.

    `call`: (how many collectives its sender has begun, the call's code, its length).
    """

    rank: int
    kind: Kind
    text: str
    generation: int = 0
    cell: int = 0
    call: tuple[int, int, int] = (0, 0, 0)


def cause_first(letter: Letter) -> tuple:
    """The order in which failures are told."""
    return letter.kind == FOLLOWED, letter.rank


def partners(rank: int, ranks: int) -> list[int]:
    """Neighbours in a hypercube of `ranks`: few, and news that all pass on reaches everybody."""
    return [rank ^ 1 << k for k in range(ranks.bit_length()) if rank ^ 1 << k < ranks]


def audience(rank: int, ranks: int) -> list[int]:
    """Whom to tell what concerns everybody: the others; beyond 64 ranks, those that pass it on."""
    everybody = [other for other in range(ranks) if other != rank]
    return everybody if ranks <= 64 else partners(rank, ranks)


class Mailbox:
    """Letters over a communicator of their own, so that they can't be taken for data.

    Attributes: what has come, of this generation, by the rank that wrote it.
        failures: FAILED, FOLLOWED and MISMATCH
        again, waits: AGAIN and WAITS, the latest
        recovering: of the ranks that wrote RECOVERS, the cells in which they did
        ended: ENDED, of whatever generation
    """

    cell = 0  # of all mailboxes of this process: the number of the notebook's cell it is in

    def __init__(self, comm: MPI.Comm):
        self.comm, self.generation = comm, 0
        self.ended: dict[int, Letter] = {}
        self._early: list[Letter] = []
        self._sent: list[tuple[MPI.Request, np.ndarray]] = []
        self._begin()

    def _begin(self) -> None:
        self.failures: dict[int, Letter] = {}
        self.again: dict[int, Letter] = {}
        self.waits: dict[int, Letter] = {}
        self.recovering: dict[int, int] = {}
        self.said: set[Kind] = set()  # of what is said once in a generation

    def next_generation(self) -> None:
        """Forget what was said of this generation; letters of the next one may be here already."""
        self.generation += 1
        self._begin()
        early, self._early = self._early, []
        for letter in early:
            self._file(letter)

    def fails_again(self, rank: int | None = None) -> list[Letter]:
        """Of AGAIN, what was not written in an earlier cell; by `rank` only, if one is given."""
        letters = self.again.values() if rank is None else filter(None, [self.again.get(rank)])
        return [letter for letter in letters if letter.cell >= self.cell]

    def post(
        self, kind: Kind, text: str = "", call=(0, 0, 0), to: Iterable[int] | None = None
    ) -> None:
        """Send one letter to every other rank, or to the ranks `to`."""
        self.said.add(kind)
        head = np.array([kind, self.generation, self.cell, *call], np.int64).tobytes()
        envelope = np.frombuffer(head + text.encode()[:TEXT], np.uint8)
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        for rank in range(self.comm.size) if to is None else to:
            if rank != self.comm.rank:
                self._sent.append((self.comm.Isend([envelope, MPI.BYTE], rank, TAG), envelope))

    def collect(self) -> None:
        """File the letters that have come so far. Does not wait."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, TAG, status):
            content = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            request = self.comm.Irecv([content, MPI.BYTE], status.source, TAG)
            while not request.Test():  # it is here: this only copies
                time.sleep(0)
            kind, generation, cell, *call = map(int, content[:HEAD].view(np.int64))
            text = content[HEAD:].tobytes().decode(errors="replace")
            self._file(Letter(status.source, Kind(kind), text, generation, cell, tuple(call)))

    def _file(self, letter: Letter) -> None:
        if letter.kind == ENDED:
            self.ended[letter.rank] = letter
        elif letter.generation > self.generation:
            self._early.append(letter)
        elif letter.kind == AGAIN and letter.generation >= self.generation - 1:
            self.again[letter.rank] = letter  # of the last one: while this one is set up
            if self.recovering.get(letter.rank, letter.cell) < letter.cell:
                del self.recovering[letter.rank]  # that was in an earlier cell, for nothing
        elif letter.kind == RECOVERS:
            self.again.pop(letter.rank, None)  # it is back, also from what it said before
            if letter.generation == self.generation:
                self.recovering[letter.rank] = letter.cell
        elif letter.generation < self.generation:
            pass
        elif letter.kind == WAITS:
            self.waits[letter.rank] = letter
        else:
            self.failures[letter.rank] = letter

    def settle(self, seconds: float) -> list[Letter]:
        """After a failure: wait until all others have written too, or `seconds` have passed.

        Then every rank knows every cause, and no rank is still inside a call of the team.
        """
        end = time.monotonic() + seconds
        self.collect()
        while len(self.failures) < self.comm.size - 1 and time.monotonic() < end:
            time.sleep(0.001)
            self.collect()
        while not all(request.Test() for request, _ in self._sent) and time.monotonic() < end:
            time.sleep(0.001)
        return sorted(self.failures.values(), key=lambda letter: letter.rank)
