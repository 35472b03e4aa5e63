"""Control messages ("letters") among the ranks of a team, read only by ranks that wait.

A rank posts a letter and does not wait for it to be read. A rank that waits for anything reads its
mailbox every few milliseconds.

A team that failed and was recovered is in its next *generation*. Ranks pass from one generation to
the next at different moments, so every letter carries the generation it belongs to.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import filterfalse, repeat
from operator import methodcaller

import numpy as np
from mpi4py import MPI

from ..errors import LEFT as LEFT
from ..errors import PeerError

TEXT = 1000  # bytes of a letter's text at most, so that MPI sends it eagerly
HEAD = 7 * 8
TAG = 1


class Kind(IntEnum):
    FAILED = 0  # it raised an exception of its own: it is a cause
    FOLLOWED = 1  # it failed because another rank did
    MISMATCH = 2  # it found that another rank made a different call
    AGAIN = 3  # it failed once more, before the team was recovered
    RECOVERS = 4  # it has left all calls of this generation and is ready for the next one
    WAITS = 5  # it has been waiting for some time, in `call`
    ENDED = 6  # it dropped the team, or its program ended, after `call`
    STAYS = 7  # it goes on with the ranks in `text`, a bit mask; `call` begins with the attempt


FAILED, FOLLOWED, MISMATCH, AGAIN, RECOVERS, WAITS, ENDED, STAYS = Kind
FAILURES = FAILED, FOLLOWED, MISMATCH, AGAIN
_has_ended = methodcaller("Test")  # of a request


@dataclass(frozen=True)
class Letter:
    """One message; `text` is the error message, if any.

    `generation` is the team's, `cell` the notebook cell that the sender was in (0: none). `call` is
    (number of collectives that the sender has begun, code of the call, length); of a FAILED or
    FOLLOWED letter (the rank that failed first, 0, that number).
    """

    rank: int
    kind: Kind
    text: str
    generation: int = 0
    cell: int = 0
    call: tuple[int, int, int] = (0, 0, 0)

    @property
    def count(self) -> int:
        """How many collectives the sender of a failure had begun."""
        return self.call[2 if self.kind in (FAILED, FOLLOWED) else 0]

    def error(self) -> PeerError:
        return PeerError(self.rank, self.text, self.call[0] if self.kind == FOLLOWED else None)


def cause_first(letter: Letter) -> tuple:
    """Sort key of failures: causes first, then by rank."""
    return letter.kind == FOLLOWED, letter.rank


def partners(rank: int, ranks: int) -> list[int]:
    """Return the neighbours of `rank` in a hypercube: log2(p) ranks that relay news to all."""
    return [rank ^ 1 << k for k in range(ranks.bit_length()) if rank ^ 1 << k < ranks]


def audience(rank: int, ranks: int) -> list[int]:
    """Return the ranks to send news for all to: all others; beyond 64 ranks, `partners`."""
    everybody = [other for other in range(ranks) if other != rank]
    return everybody if ranks <= 64 else partners(rank, ranks)


class Mailbox:
    """Letters on a communicator of their own, so that they can't be mistaken for data."""

    cell = 0  # number of the notebook cell that this process is in; common to all mailboxes

    def __init__(self, comm: MPI.Comm):
        self.comm, self.generation = comm, 0
        self.ended: dict[int, Letter] = {}  # ENDED, of any generation
        self.staying: dict[int, Letter] = {}  # the latest STAYS, of any generation
        self.lost: set[int] = set()  # ranks that have gone: what is sent to them stays with MPI
        self.told = 0  # letters about failures that this rank has posted, in all generations
        self.heard: dict[int, tuple[int, Letter]] = {}  # how many came from a rank, and the latest
        self.settled: dict[int, int] = {}  # how many of a rank's no longer count (Failing.heed_for)
        self._early: list[Letter] = []
        # Messages that have arrived and are not filed yet, with buffers for them.
        self._arrived: list[tuple[MPI.Message, np.ndarray, MPI.Status]] = []
        # A rank may fail on one thread while it waits on another one. It may fail within `collect`,
        # too, in a handler of a signal, so the thread that has the lock can have it again.
        self._lock = threading.RLock()
        self._sent: list[MPI.Request] = []  # each keeps its buffer
        self._begin()

    def _begin(self) -> None:
        # Letters of this generation that have arrived, by sender.
        self.failures: dict[int, Letter] = {}  # FAILED, FOLLOWED and MISMATCH
        self.again: dict[int, Letter] = {}  # the latest AGAIN
        self.waits: dict[int, Letter] = {}  # the latest WAITS
        self.recovering: dict[int, int] = {}  # cell number of each rank that wrote RECOVERS
        self.said: set[Kind] = set()  # kinds that this rank has posted in this generation

    def next_generation(self) -> None:
        """Forget this generation's letters; some of the next one may have arrived already."""
        self.generation += 1
        self._begin()
        self._file_early()

    def _file_early(self) -> None:
        for letter in [each for each in self._early if each.generation <= self.generation]:
            self._file(letter)
        self._early[:] = [each for each in self._early if each.generation > self.generation]

    def fails_again(self, rank: int | None = None) -> list[Letter]:
        """Return AGAIN letters that are not from an earlier cell; those of `rank`, if given."""
        letters = self.again.values() if rank is None else filter(None, [self.again.get(rank)])
        return [letter for letter in letters if letter.cell >= self.cell]

    def post(
        self, kind: Kind, text: str = "", call=(0, 0, 0), to: Iterable[int] | None = None
    ) -> None:
        """Send one letter to every other rank, or to the ranks `to`, but not to lost ones."""
        with self._lock:
            self.told += kind in FAILURES
            words = [kind, self.generation, self.cell, *call, self.told]
            head = np.array(words, np.int64).tobytes()
            envelope = np.frombuffer(head + text.encode()[:TEXT], np.uint8)
            everybody = range(self.comm.size) if to is None else to
            absent = self.lost | {self.comm.rank}
            ranks = [rank for rank in everybody if rank not in absent]
            # Each in one call in C: a signal's handler may post, too, or raise an exception.
            self._sent[:] = filterfalse(_has_ended, self._sent)
            self._sent.extend(
                map(self.comm.Isend, repeat([envelope, MPI.BYTE]), ranks, repeat(TAG))
            )
            self.said.add(kind)  # an interrupt before this: not all have been told, see `abort`

    def collect(self) -> None:
        """File the letters that have arrived so far. Does not wait.

        A letter is lost to no exception that a signal raises here: `_arrived` has it until it is
        filed. (Python handles signals between two of its instructions, but not within calls of
        functions in C, so what must not be parted is done in one: a map of a filter.)
        """
        with self._lock:
            self._file_early()  # if an interrupt ended `next_generation`
            while True:
                buffer, status = np.empty(HEAD + TEXT, np.uint8), MPI.Status()
                found = filter(None, map(self.comm.Improbe, [MPI.ANY_SOURCE], [TAG]))
                self._arrived.extend(zip(found, [buffer], [status], strict=False))
                first = next(iter(self._arrived), None)
                if first is None:
                    return
                self._read(*first)
                self._arrived[:] = [each for each in self._arrived if each is not first]

    def _read(self, message: MPI.Message, buffer: np.ndarray, status: MPI.Status) -> None:
        # This only copies what has arrived. A message that has been received is false.
        receive = methodcaller("Recv", [buffer, MPI.BYTE], status)
        list(map(receive, filter(None, [message])))
        content = buffer[: status.Get_count(MPI.BYTE)]
        kind, generation, cell, *call, told = map(int, content[:HEAD].view(np.int64))
        text = content[HEAD:].tobytes().decode(errors="replace")
        letter = Letter(status.source, Kind(kind), text, generation, cell, tuple(call))
        if kind in FAILURES:
            self.heard[letter.rank] = told, letter
        self._file(letter)

    def _file(self, letter: Letter) -> None:
        if letter.kind == ENDED:
            self.ended[letter.rank] = letter
        elif letter.kind == STAYS:
            self.staying[letter.rank] = letter
        elif letter.generation > self.generation:
            self._early.append(letter)
        elif letter.kind == AGAIN and letter.generation >= self.generation - 1:
            # From the last generation, too: the sender may have failed while this one was set up.
            self.again[letter.rank] = letter
            if self.recovering.get(letter.rank, letter.cell) < letter.cell:
                del self.recovering[letter.rank]  # written in an earlier cell: no longer valid
        elif letter.kind == RECOVERS:
            self.again.pop(letter.rank, None)  # it recovers from that failure as well
            if letter.generation == self.generation:
                self.recovering[letter.rank] = letter.cell
        elif letter.generation < self.generation:
            pass
        elif letter.kind == WAITS:
            self.waits[letter.rank] = letter
        else:
            self.failures[letter.rank] = letter

    def settle(self, seconds: float) -> list[Letter]:
        """After a failure, wait until all other ranks have written, or `seconds` have passed.

        Then every rank knows every cause, and no rank is still inside a call of the team. Returns
        the letters about failures, by rank.
        """
        end = time.monotonic() + seconds
        self.collect()
        others = self.comm.size - 1 - len(self.lost)
        while len(self.failures.keys() - self.lost) < others and time.monotonic() < end:
            time.sleep(0.001)
            self.collect()
        while not all(map(_has_ended, self._sent)) and time.monotonic() < end:
            time.sleep(0.001)
        return sorted(self.failures.values(), key=lambda letter: letter.rank)

    def receive_the_rest(self, end: float, gone=lambda rank: False) -> None:
        """Receive all that others have sent, to the last: their ENDED, or `end` on the clock.

        Otherwise MPI_Finalize would find letters that nobody received, and UCX warns of each one.
        It does not delay the end of the program: MPI_Finalize waits for all ranks as well. `gone`
        tells which ranks can't write any more.
        """
        writers = set(audience(self.comm.rank, self.comm.size))
        while True:
            self.collect()
            late = writers - self.ended.keys() - self.lost
            sent = all(map(_has_ended, self._sent))
            if (sent and all(map(gone, late))) or time.monotonic() > end:
                return
            time.sleep(0.001)
