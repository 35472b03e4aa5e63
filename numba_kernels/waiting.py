"""How a team waits: bounded polls, and between them a look around.

No wait blocks in C. A wait is a compiled kernel that polls for a few milliseconds without the GIL
and then comes back to Python, where Ctrl-C is noticed, the mailbox is looked into and the deadline
is checked; then it polls on. So when a rank fails, the others raise PeerError instead of waiting
for ever, and the stop button works.
"""

from __future__ import annotations

import sys
import time
import weakref

import numpy as np

from . import board, calls, messages, mpi
from .allreduce.mpi import FAILED as LIBRARY_FAILED
from .allreduce.shared_memory import ELSEWHERE
from .board import READY, WAIT
from .errors import DeadlineError, MismatchError, PeerError, TeamError
from .mailbox import FAILED, FOLLOWED, MISMATCH, Letter, Mailbox
from .node import AT

PATIENCE = 0.005  # seconds that a kernel polls before it lets Python look around
live: weakref.WeakSet[Waiting] = weakref.WeakSet()


class Waiting:
    """What Team builds on: running resumable kernels, and telling others of a failure."""

    def __init__(self, rank: int, size: int, deadline: float | None):
        self.rank, self.size, self.deadline = rank, size, deadline
        self.is_cause = False  # of a failure: it failed, and knew of no other that had
        self._routes: list[messages.Route] = []  # the first one is to all ranks
        self._failure: BaseException | None = None
        self._mailbox: Mailbox | None = None
        self._doing, self._suspect = "making the team", None
        self.board: np.ndarray | None = None
        self._node: np.ndarray | None = None
        self._count = 0  # collectives so far: the same on all ranks
        live.add(self)
        _tell_of_exceptions()

    def abort(self, error: BaseException) -> None:
        """Tell all other ranks that this one failed: they raise PeerError where they wait."""
        if self._failure is None:
            self._failure = error
            if not isinstance(error, TeamError):  # not KeyboardInterrupt again at every call
                text = f"this team can't be used: {type(error).__name__} in {self._doing}"
                self._failure = TeamError(text)
        if self._mailbox is None or self._mailbox.sent or not self._routes:
            return
        for route in self._routes:
            messages.cancel(route.link)
        if isinstance(error, MismatchError):
            self._mailbox.post(MISMATCH, self._doing)
            return
        # Who fails after another did is no cause, even if it does so by itself.
        known = self._mailbox.settle(0.02)  # a letter that is here may need some polls to show
        followed = isinstance(error, PeerError) or any(note.kind == FAILED for note in known)
        self.is_cause = not followed
        text = str(error) if isinstance(error, PeerError) else f"{type(error).__name__}: {error}"
        self._mailbox.post(FOLLOWED if followed else FAILED, text.replace("\n", " "))

    def settle(self, seconds: float = 2.0) -> list[Letter]:
        """After `abort`: what the other ranks wrote; waits for all of them, at most `seconds`."""
        return self._mailbox.settle(seconds)

    def on_node(self, kernel, call: int, x: np.ndarray, *arguments) -> bool:
        """Run a resumable kernel among the ranks of the node; False if it wants `x` in a window.

        Halves are handed to it as the integers that carry them (halves.py).
        """
        self._ready()
        self._node[AT] = 0
        done = kernel(self._node, call, x, *arguments)
        if done == ELSEWHERE:
            return False
        self._count += 1
        if done != READY:
            self._wait(call, x.size, done, kernel, (self._node, call, x, *arguments))
        return True

    def by_messages(
        self, call: int, length: int, dtype, kernel, arguments: tuple, route=None
    ) -> None:
        """Run a resumable kernel that exchanges messages, over all ranks or those of `route`."""
        self._ready()
        if length > 2**31 - 1:
            raise ValueError(f"{length} elements in messages; 2^31 - 1 is the most that MPI takes")
        link, *numbers = route or self._routes[0]
        self._count += 1
        link.words[messages.AT] = 0
        link.words[messages.TAG] = calls.tag(call, length, self._count)
        link.handles[messages.DATATYPE] = mpi.datatype(dtype)
        all_of_it = (link, *numbers, *arguments)
        done = kernel(*all_of_it)
        if done != READY:
            self._wait(call, length, done, kernel, all_of_it)

    def set_operation(self, handle: int) -> None:
        """The reduction that the MPI library is asked for next."""
        self._routes[0].link.handles[messages.OP] = handle

    def skip(self) -> None:
        """Count a collective of others that this rank has no part in: numbers stay the same."""
        self._count += 1

    def forget(self) -> None:
        """Exceptions of this process are no longer this team's business."""
        live.discard(self)

    def _ready(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait(self, call: int, length: int, done: int, kernel, arguments: tuple) -> None:
        """Go on with a kernel that said WAIT, or that found a mismatch."""
        self._announce(call, length)
        started = time.monotonic()
        try:
            while done != READY:
                if done == LIBRARY_FAILED:
                    raise MismatchError(
                        f"rank {self.rank} called {self._doing}, in which the MPI library reports "
                        "an error: do all ranks call the same?"
                    )
                if done != WAIT:
                    told = isinstance(arguments[0], messages.Link)  # by a tag, which says no more
                    peer = -1 - done if told else self.node[-1 - done]
                    raise self._mismatch(peer, None if told else self._call_of(-1 - done))
                self._look_around(started)
                done = kernel(*arguments)
        except BaseException as error:
            self._abandoned = arguments  # MPI may still write there
            self.abort(error)
            raise

    def _announce(self, call: int, length: int) -> None:
        """Write on the board what this rank waits in, for ranks that wait in something else."""
        self._doing = calls.describe(call, length)
        self._suspect = None
        mine = self.board[self.place]
        mine[board.WAITING], mine[board.LENGTH] = call, length
        mine[board.NUMBER] = self._count

    def _until(self, finished, seconds: float | None = None) -> None:
        """Wait in Python until `finished()`; for setting up, where microseconds don't count."""
        started = time.monotonic()
        try:
            while not finished():
                self._look_around(started, seconds)
        except BaseException as error:
            self.abort(error)
            raise

    def _look_around(self, started: float, seconds: float | None = None) -> None:
        """Between two polls: let signals through, read the mail, compare calls, rest."""
        waited = time.monotonic() - started
        letters = self._mailbox.collect() if self._mailbox else {}
        for letter in sorted(letters.values(), key=lambda note: (note.kind == FOLLOWED, note.rank)):
            if letter.kind == MISMATCH:
                raise self._mismatch(letter.rank, letter.text)
            raise PeerError(letter.rank, letter.text)
        limit = seconds or self.deadline
        if limit is not None and waited > limit:
            raise DeadlineError(
                f"rank {self.rank} waited {waited:.1f} s in {self._doing}; the limit is {limit} s"
            )
        if self.board is not None and waited > PATIENCE:
            self._compare()
        # A long wait need not keep a core busy: rest for 1% of it, at most a millisecond.
        time.sleep(min(0.001, waited / 100))

    def _compare(self) -> None:
        """MismatchError if a rank of this node waits in another call that has the same number."""
        mine = self.board[self.place]
        for peer, theirs in zip(self.node, self.board, strict=True):
            said = tuple(map(int, theirs[[board.NUMBER, board.WAITING, board.LENGTH]]))
            if said[0] == self._count and said[1:] != (mine[board.WAITING], mine[board.LENGTH]):
                if self._suspect == (peer, said):  # seen twice: not in the middle of being written
                    raise self._mismatch(peer, calls.describe(*said[1:]))
                self._suspect = (peer, said)
                return

    def _mismatch(self, peer: int, theirs: str | None) -> MismatchError:
        theirs = f"rank {peer} called {theirs}" if theirs else f"rank {peer} called something else"
        return MismatchError(f"rank {self.rank} called {self._doing}, but {theirs}")

    def _call_of(self, place: int) -> str:
        """What the rank at `place` of this node says on the board that it calls."""
        turn = board.CALL + 2 * (int(self.board[self.place, board.COUNT]) & 1)
        call, length = map(int, self.board[place, turn : turn + 2])
        mine = int(self.board[self.place, turn + 1])
        same = call == self.board[self.place, turn] and (length - mine) % board.LENGTHS == 0
        where = ""
        if same:
            outside = min(length, mine) < board.LENGTHS
            where = " of an array outside the window" if length < mine and outside else ""
            where = where or " of another part of a window"
        return calls.describe(call, length % board.LENGTHS) + where


def _tell_of_exceptions() -> None:
    """Have an exception that ends this process tell the ranks of its teams (once installed)."""
    before = sys.excepthook
    if getattr(before, "tells_teams", False):
        return

    def tell(kind, error, trace):
        abort_all(error)
        before(kind, error, trace)

    tell.tells_teams = True
    sys.excepthook = tell


def abort_all(error: BaseException) -> None:
    """Tell the ranks of every team of this process that it failed."""
    for team in list(live):
        team.abort(error)
