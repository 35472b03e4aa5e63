"""Failures: a rank that fails tells the others, so that all can recover together.

A rank that fails posts a letter to all others (mailbox.py), which raise PeerError where they wait.
From then on the team refuses calls, until all its ranks have called `recover` (recovery.py).

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
    """The part of a team that reports and receives failures."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.is_cause = False  # this rank failed before it heard of any other failure
        self._routes: list[messages.Route] = []  # the first one is to all ranks
        self._failure: BaseException | None = None
        self._renews = False  # the next call recovers a failed team
        self._mailbox: Mailbox | None = None
        self._doing = "making the team"
        self._count = 0  # collectives so far: the same on all ranks
        self._buffers: tuple = ()  # of the call that this rank waits in
        self._abandoned: list[messages.Abandoned] = []
        self._lost: list[tuple] = []  # collectives of the MPI library that never ended
        live.add(self)
        _tell_of_the_end()

    @property
    def generation(self) -> int:
        """How many times the team has been recovered."""
        return self._mailbox.generation if self._mailbox else 0

    def abort(self, error: BaseException) -> None:
        """Tell all other ranks that this one failed with `error`; they raise PeerError."""
        text = str(error) if isinstance(error, PeerError) else f"{type(error).__name__}: {error}"
        text = text.replace("\n", " ").removesuffix(": ")
        fresh = self._failure is None
        if fresh:
            self._failure, self._renews = error, False
            if not isinstance(error, TeamError):  # so that no later call raises KeyboardInterrupt
                self._failure = TeamError(
                    f"this team can't be used after {text}; call recover() on all its ranks"
                )
        mail = self._mailbox
        if mail is None:
            return
        if not fresh:
            # Other ranks may already be recovering, and would wait for this rank.
            if self._renews:
                self._renews = False
                mail.post(AGAIN, text)
            return
        for link, *_ in self._routes:
            if link.words[messages.POSTED]:
                self._abandoned.append(messages.Abandoned(link, self._buffers))
            elif link.handles[messages.SEND] != link.handles[messages.NO_REQUEST]:
                # A collective of the MPI library can't be cancelled, so MPI may write to its
                # buffers at any time: keep them.
                self._lost.append((self.comm, self._buffers))
                link.handles[messages.SEND] = link.handles[messages.NO_REQUEST]
        if isinstance(error, MismatchError):
            mail.post(MISMATCH, str(error), self._waits_in)
            return
        # A rank that fails after another is not a cause, even if its error is its own.
        known = mail.settle(0.02)  # MPI may need several polls to show a letter that has arrived
        followed = isinstance(error, PeerError) or any(note.kind == FAILED for note in known)
        self.is_cause = not followed
        mail.post(FOLLOWED if followed else FAILED, text)

    def settle(self, seconds: float = 2.0) -> list[Letter]:
        """After `abort`, return the other ranks' letters; wait for all, at most `seconds`."""
        return self._mailbox.settle(seconds)

    def new_cell(self) -> None:
        """See the function `new_cell`."""
        mail = self._mailbox
        if mail is None:
            return
        for _ in range(20):  # MPI may need several polls to show a letter that has arrived
            mail.collect()
        old = [letter for letter in mail.failures.values() if letter.cell < mail.cell]
        if self._failure is None and old:
            letter = min(old, key=cause_first)
            self.abort(PeerError(letter.rank, letter.text))
        self._renews = self._failure is not None

    def forget(self) -> None:
        """Stop telling this team about exceptions of this process."""
        live.discard(self)

    def _heed(self) -> None:
        """Raise PeerError or MismatchError if a letter reports a failure."""
        mail = self._mailbox
        if mail is None:
            return
        mail.collect()
        for letter in sorted([*mail.failures.values(), *mail.fails_again()], key=cause_first):
            if letter.kind == MISMATCH:
                raise self._mismatch_told(letter)
            raise PeerError(letter.rank, letter.text)
        for rank in mail.recovering.keys() - mail.failures.keys():
            raise PeerError(rank, "it is recovering from a failure of its own")
        for letter in mail.ended.values():
            if (letter.generation, letter.call[0]) < (mail.generation, self._count):
                raise PeerError(letter.rank, LEFT)

    def say_the_end(self) -> None:
        """Tell the others that this rank will not call the team again: it exits or dropped it."""
        mail = getattr(self, "_mailbox", None)
        if mail is not None and ENDED not in mail.said and not MPI.Is_finalized():
            mail.post(ENDED, "", (self._count, 0, 0), audience(self.rank, self.size))

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
