"""Failures: a rank that fails tells the others, so that all can recover together.

A rank that fails posts a letter to all others (mailbox.py), which raise PeerError if they wait.
From then on the team refuses calls until all its ranks have called `recover` (recovery.py).

The first team of a process (not the import) sets sys.excepthook and registers an atexit function.
"""

from __future__ import annotations

import atexit
import sys
import weakref

from mpi4py import MPI

from ..allreduce import messages
from ..errors import MismatchError, PeerError, TeamError
from .mailbox import (
    AGAIN,
    ENDED,
    FAILED,
    FOLLOWED,
    LEFT,
    MISMATCH,
    Letter,
    Mailbox,
    audience,
    cause_first,
)

live: weakref.WeakSet[Failing] = weakref.WeakSet()


class Failing:
    """The part of a team that reports and receives failures (team.py says who holds what).

    Attributes:
        is_cause: this rank failed before it heard of any other failure.
        failure: the error that every call raises until the team is recovered; None if it works.
        renews: the next call recovers the failed team, because a new notebook cell has begun.
        letters: the Mailbox; None before the team is made, and after `close`.
        doing: the call that this rank is in, in words.
        count: number of collectives so far, the same on all ranks.
        waits_in: (count, code, length) of the call that this rank waits in.
        routes: ways for messages; the first one is to all ranks.
        buffers: arrays of the call that this rank waits in.
        abandoned: exchanges that failed calls left in flight.
        lost: collectives of the MPI library that never ended, with their buffers.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.failure: BaseException | None = None
        self.is_cause = self.renews = False
        self.letters: Mailbox | None = None
        self.doing, self.count, self.waits_in = "making the team", 0, (0, 0, 0)
        self.routes: list[messages.Route] = []
        self.buffers: tuple = ()
        self.abandoned: list[messages.Abandoned] = []
        self.lost: list[tuple] = []
        live.add(self)
        _tell_of_the_end()

    @property
    def generation(self) -> int:
        """How many times the team has been recovered."""
        return self.letters.generation if self.letters else 0

    def abort(self, error: BaseException) -> None:
        """Tell all other ranks that this one failed with `error`; they raise PeerError."""
        text = str(error) if isinstance(error, PeerError) else f"{type(error).__name__}: {error}"
        text = text.replace("\n", " ").removesuffix(": ")
        fresh, again = self.failure is None, self.renews
        if fresh or again:  # `again`: the failure before was in an earlier cell
            self.refuse_after(error, text)
        mail = self.letters
        if mail is None:
            return
        if not fresh:
            # Other ranks may already be recovering, and would wait for this rank.
            if again:
                mail.post(AGAIN, text)
            return
        for link, *_ in self.routes:
            if link.words[messages.POSTED]:
                self.abandoned.append(messages.Abandoned(link, self.buffers))
            elif link.handles[messages.SEND] != link.handles[messages.NO_REQUEST]:
                # A collective of the MPI library can't be cancelled, so MPI may write to its
                # buffers at any time: keep them.
                self.lost.append((self.comm, self.buffers))
                link.handles[messages.SEND] = link.handles[messages.NO_REQUEST]
        if isinstance(error, MismatchError):
            mail.post(MISMATCH, str(error), self.waits_in)
            return
        # A rank that fails after another is not a cause, even if its error is its own.
        known = mail.settle(0.02)  # MPI may need several polls to show a letter that has arrived
        followed = isinstance(error, PeerError) or any(note.kind == FAILED for note in known)
        self.is_cause = not followed
        first = error.cause if isinstance(error, PeerError) else self.rank
        mail.post(*((FOLLOWED, text, (first, 0, 0)) if followed else (FAILED, text)))

    def refuse_after(self, error: BaseException, text: str) -> None:
        """Let every further call raise `error`, until the team is recovered."""
        self.failure, self.renews = error, False
        if not isinstance(error, TeamError):  # so that no later call raises KeyboardInterrupt
            self.failure = TeamError(
                f"this team can't be used after {text}; call recover() on all its ranks"
            )

    def settle(self, seconds: float = 2.0) -> list[Letter]:
        """After `abort`, return the other ranks' letters; wait for all, at most `seconds`."""
        return self.letters.settle(seconds)

    def new_cell(self) -> None:
        """See the function `new_cell`."""
        mail = self.letters
        if mail is None:
            return
        for _ in range(20):  # MPI may need several polls to show a letter that has arrived
            mail.collect()
        old = [letter for letter in mail.failures.values() if letter.cell < mail.cell]
        if self.failure is None and old:
            letter = min(old, key=cause_first)
            self.abort(letter.error())
        self.renews = self.failure is not None

    def next_generation(self) -> None:
        """Forget the failure: all ranks have left every call of this generation."""
        self.letters.next_generation()
        self.failure, self.renews, self.is_cause, self.count = None, False, False, 0

    def forget(self) -> None:
        """Stop telling this team about exceptions of this process."""
        live.discard(self)

    def heed(self) -> None:
        """Raise PeerError or MismatchError if a letter reports a failure."""
        mail = self.letters
        if mail is None:
            return
        mail.collect()
        for letter in sorted([*mail.failures.values(), *mail.fails_again()], key=cause_first):
            if letter.kind == MISMATCH:
                raise self._mismatch_told(letter)
            raise letter.error()
        for rank in mail.recovering.keys() - mail.failures.keys():
            raise PeerError(rank, "it is recovering from a failure of its own")
        for letter in mail.ended.values():
            if (letter.generation, letter.call[0]) < (mail.generation, self.count):
                raise PeerError(letter.rank, LEFT)

    def say_the_end(self) -> None:
        """Tell the others that this rank will not call the team again: it exits or dropped it."""
        mail = getattr(self, "letters", None)
        if mail is not None and ENDED not in mail.said and not MPI.Is_finalized():
            mail.post(ENDED, "", (self.count, 0, 0), audience(self.rank, self.size))

    __del__ = say_the_end


def abort_all(error: BaseException) -> None:
    """Tell the ranks of every team of this process that it failed."""
    for team in list(live):
        team.abort(error)


def new_cell(number: int | None = None) -> None:
    """Begin a new notebook cell: failed teams recover at their next call.

    So no `recover()` is needed in the cell after a failed one; it happens when all ranks call
    something of the team.

    Args:
        number: the cell's number, the same on all ranks that run it, and greater than the numbers
            before. It is needed because engines begin a cell at different moments, and one may
            already have failed in it. The default is one more than the last number.
    """
    Mailbox.cell = Mailbox.cell + 1 if number is None else number
    for team in list(live):
        team.new_cell()


def _tell_of_the_end() -> None:
    """Install hooks (sys.excepthook, atexit) that tell teams how this process ends."""
    before = sys.excepthook
    if getattr(before, "tells_teams", False):
        return

    def tell(kind, error, trace):
        abort_all(error)
        before(kind, error, trace)

    tell.tells_teams = True
    sys.excepthook = tell
    atexit.register(lambda: [team.say_the_end() for team in list(live)])
