"""Failures: a rank that fails tells the others, so that all can recover together.

A rank that fails posts a letter to all others (mailbox.py), which raise PeerError if they wait.
From then on the team refuses calls until all its ranks have called `recover` (recovery.py).
"""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mpi4py import MPI, rc

from ..allreduce import messages
from ..errors import MismatchError, PeerError, TeamError, line_of
from .mailbox import FAILURES, LEFT, Kind, Letter, Mailbox, audience, cause_first
from .short_traceback import in_short
from .stall import has_ended

live: weakref.WeakSet[Failing] = weakref.WeakSet()
# Of teams that this rank has dropped, and at the end of all: mailboxes, and {rank: pid}.
ended: list[tuple[Mailbox, dict[int, int]]] = []
END_SECONDS = 10.0  # that a program waits for others to end, before MPI_Finalize waits for them


class Failing:
    """The part of a team that reports and receives failures (see team.py)."""

    is_cause = False  # this rank failed before it heard of any other failure
    renews = False  # the next call recovers the failed team: a new notebook cell has begun
    letters: Mailbox | None = None  # None before the team is made, and after `close`
    doing = "making the team"  # the call that this rank is in
    count = 0  # collectives so far, the same on all ranks
    waits_in = (0, 0, 0)  # (count, code, length) of the call that this rank waits in
    # What ranks do, for errors and reports: {1: "stage 1"} makes it "rank 1 (stage 1) failed".
    roles: Mapping[int, str] = MappingProxyType({})
    buffers: tuple = ()  # arrays of the call that this rank waits in
    sets_up = False  # it has left all calls of the last generation, and makes the next one
    attempt = 0  # to make a team of the ranks that are left (regrouping.py)
    # The team that it was made from when ranks were lost, the attempt, and the ranks there.
    origin: tuple[Failing, int, list[int]] | None = None

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self.world_ranks: Sequence[int] = range(size)  # as MPI.COMM_WORLD numbers them
        self.failure: BaseException | None = None  # what every call raises until recovery
        self.routes: list[messages.Route] = []  # ways for messages; the first one is to all ranks
        self.abandoned: list[messages.Abandoned] = []  # left in flight by failed calls
        # {id of a link: buffers} of messages that are on their way while this rank computes.
        self.exchanged: dict[int, tuple] = {}
        self.lost: list[tuple] = []  # collectives of MPI that never ended, with their buffers
        live.add(self)
        _tell_of_the_end()

    @property
    def generation(self) -> int:
        return self.letters.generation if self.letters else 0

    def abort(self, error: BaseException, heard: bool = False) -> None:
        """Tell all other ranks that this one failed with `error`; they raise PeerError.

        `heard`: the error was raised by this team, so it numbers ranks as this team does.
        """
        peer = isinstance(error, PeerError)
        if peer and heard:
            error.name_roles(self.roles)
        text = _in_words(error, heard)
        fresh, again = self.failure is None, self.renews
        if fresh or again:  # `again`: the failure before was in an earlier cell
            self.refuse_after(error, text)
        mail = self.letters
        if mail is None:
            return
        # If not told, an interrupt ended the call that had begun to tell them.
        told = not mail.said.isdisjoint(FAILURES)
        if not fresh and told:
            # Other ranks may already be recovering, and would wait for this rank.
            if again:
                mail.post(Kind.AGAIN, text)
            return
        for link, *_ in self.routes:
            if link.words[messages.POSTED]:
                kept = self.buffers, self.exchanged.pop(id(link), ())
                self.abandoned.append(messages.Abandoned(link, kept))
            elif link.handles[messages.SEND] != link.handles[messages.NO_REQUEST]:
                # A collective of the MPI library can't be cancelled, so MPI may write to its
                # buffers at any time: keep them.
                self.lost.append((self.comm, self.buffers))
                link.handles[messages.SEND] = link.handles[messages.NO_REQUEST]
        if isinstance(error, MismatchError):
            mail.post(Kind.MISMATCH, str(error), self.waits_in)
            return
        # A rank that fails after another is not a cause, even if its error is its own.
        known = mail.settle(0.02)  # MPI may need several polls to show a letter that has arrived
        self.is_cause = not (peer or any(note.kind == Kind.FAILED for note in known))
        first, text = (error.cause, error.reason) if peer and heard else (self.rank, text)
        kind = Kind.FAILED if self.is_cause else Kind.FOLLOWED
        mail.post(kind, text, (first, 0, self.count))

    def tell_anew(self, error: BaseException) -> None:
        """Abort, and tell the others of this failure even if they were told of one before.

        A team that is made within this one has failed. The ranks that make it wait for this rank,
        and have heard of the failure before: for them it no longer counts (`heed_for`).
        """
        mail = self.letters
        told = mail.told if mail else 0
        self.abort(error)
        if mail is not None and mail.told == told:
            kind = Kind.FOLLOWED if isinstance(error, PeerError) else Kind.FAILED
            mail.post(kind, _in_words(error), (self.rank, 0, self.count))

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
        """Learn of failures in earlier cells; a failed team recovers at its next call."""
        mail = self.letters
        if mail is None:
            return
        for _ in range(20):  # MPI may need several polls to show a letter that has arrived
            mail.collect()
        old = [letter for letter in mail.failures.values() if letter.cell < mail.cell]
        if self.failure is None and old:
            letter = min(old, key=cause_first)
            self.abort(letter.error(), heard=True)
        self.renews = self.failure is not None

    def next_generation(self) -> None:
        """Forget the failure: all ranks have left every call of this generation."""
        self.letters.next_generation()
        self.failure, self.renews, self.is_cause, self.count = None, False, False, 0

    def forget(self) -> None:
        live.discard(self)

    def heed(self) -> None:
        """Read the mailbox and raise what other ranks report: this is how a rank learns of it."""
        mail = self.letters
        if mail is None:
            return
        mail.collect()
        letters = sorted([*mail.failures.values(), *mail.fails_again()], key=cause_first)
        if self.sets_up:
            # A rank that has called the team again has seen all ranks do their part of setting up,
            # so this rank will be through, too. It hears of that failure in its next call.
            letters = [letter for letter in letters if letter.count == 0]
        for letter in letters:
            if letter.kind == Kind.MISMATCH:
                raise self._mismatch_told(letter)
            raise letter.error()
        for rank in mail.recovering.keys() - mail.failures.keys():
            raise PeerError(rank, "it is recovering from a failure of its own")
        now = mail.generation, self.count + self.sets_up
        for letter in mail.ended.values():
            if (letter.generation, letter.call[0]) < now:
                raise PeerError(letter.rank, LEFT)

    def heed_for(self, part) -> None:
        """Raise what the ranks of `part`, a team that is being made, report here."""
        mail = self.letters
        mail.collect()
        for rank, own in part.mates.items():
            told, letter = mail.heard.get(rank, (0, None))
            if told > (settled := mail.settled.get(rank, 0)):
                # One at a time: that rank may have failed in the next try, too, for which this one
                # would wait.
                now = letter.cell >= mail.cell
                mail.settled[rank] = settled + 1 if now else told
                if now:
                    raise letter.error().renumbered(part.mates)
            if part.letters is None and rank in mail.ended:
                raise PeerError(own, LEFT)
            if rank in mail.staying and mail.staying[rank].call[0] > part.attempt:
                raise PeerError(own, "another rank was lost while this team was made")

    def say_the_end(self) -> None:
        """Tell the others that this rank will not call the team again: it exits or dropped it."""
        mail = self.letters
        if mail is not None and Kind.ENDED not in mail.said and not MPI.Is_finalized():
            mail.post(Kind.ENDED, "", (self.count, 0, 0), audience(self.rank, self.size))
            ended.append((mail, self.processes))

    def __del__(self, finalizing=sys.is_finalizing):
        # When Python ends, `_end` has told the others, and this module's names may be gone.
        if not finalizing():
            self.say_the_end()


def _in_words(error: BaseException, heard: bool = False) -> str:
    text = line_of(error)
    if isinstance(error, PeerError):
        text = str(error) if heard else f"in another team, {error}"
    return text.replace("\n", " ")


def abort_all(error: BaseException) -> None:
    """Tell the ranks of every team of this process that it failed."""
    for team in list(live):
        team.abort(error)


def new_cell(number: int | None = None) -> None:
    """Begin notebook cell `number`: failed teams recover at their next call.

    So no `recover()` is needed in the cell after a failed one. The number (default: one more than
    the last) is the same on all ranks that run the cell, and greater than those before: engines
    begin a cell at different moments, and one may already have failed in it.
    """
    Mailbox.cell = Mailbox.cell + 1 if number is None else number
    for team in list(live):
        team.new_cell()


def _tell_of_the_end() -> None:
    """With the first team, not on import: set sys.excepthook, and register an atexit function."""
    before = sys.excepthook
    if getattr(before, "tells_teams", False):
        return

    def tell(kind, error, trace):
        abort_all(error)
        plain = before is sys.__excepthook__ and sys.stderr is not None
        if plain and (text := in_short(error)) is not None:
            print(text, end="", file=sys.stderr, flush=True)
        else:
            before(kind, error, trace)

    tell.tells_teams = True
    sys.excepthook = tell
    atexit.register(_end)


def _end() -> None:
    """Say to all teams that this program ends, and receive what others say, until they end."""
    for team in list(live):
        team.say_the_end()
    if MPI.Is_finalized() or rc.finalize is False:
        return
    end = time.monotonic() + END_SECONDS
    for mail, processes in ended:
        mail.receive_the_rest(end, lambda rank, of=processes: has_ended(of.get(rank)))
