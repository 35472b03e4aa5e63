"""How a team waits: bounded polls in compiled code, with checks in Python in between.

No wait blocks in C. A compiled kernel polls for a few milliseconds without the GIL and then returns
to Python, where Ctrl-C is noticed, the mailbox is read and the deadline is checked; then it polls
again. So when a rank fails, the others raise PeerError instead of waiting for ever, and a
notebook's stop button works.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from .. import spans
from ..allreduce import calls, messages
from ..allreduce.mpi import FAILED as LIBRARY_FAILED
from ..allreduce.shared_memory import ELSEWHERE
from ..errors import DeadlineError, MismatchError
from ..jit import mpi_functions as mpi
from ..shared import board
from ..shared.board import READY, WAIT
from ..shared.node_array import AT
from .failure import Failing
from .mailbox import MISMATCH, WAITS, Letter
from .recovery import connect, recover, wipe
from .stall import COMPARE, Watch

PATIENCE = 0.005  # seconds that a kernel polls before it returns to Python
SETUP_SECONDS = 120.0  # within which all ranks must begin to make a team


class Waiting(Failing):
    """Base class of Team: runs resumable kernels, and makes communicators."""

    def __init__(self, rank: int, size: int, deadline: float | None):
        super().__init__(rank, size)
        self.deadline = deadline
        self._within: Failing | None = None  # receives and reports failures while this is made
        self._processes: dict[int, int] = {}  # pids of the other ranks on this machine
        self._suspect = None
        self._waits_in = (0, 0, 0)
        self._flush: messages.Flush | None = None
        self._pending: tuple[MPI.Comm, MPI.Request] | None = None
        self._duplicates = 0  # of the mailbox's communicator
        self.board: np.ndarray | None = None
        self._node: np.ndarray | None = None

    def on_node(self, kernel, call: int, x: np.ndarray, *arguments) -> bool:
        """Run a resumable kernel among the ranks of the node.

        Halves are passed as integers with the same bits (halves.py).

        Returns:
            False if the kernel needs `x` in a window and it does not lie in one; True otherwise.
        """
        self.ready()
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
        self.ready()
        if length > 2**31 - 1:
            raise ValueError(f"elements in a message must be at most 2^31 - 1 (MPI), got {length}")
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
        """Set the reduction for the next call of the MPI library."""
        self._routes[0].link.handles[messages.OP] = handle

    def skip(self) -> None:
        """Count a collective in which this rank takes no part, so that counts stay equal."""
        self._count += 1

    def ready(self) -> None:
        """Raise the failure of the team, or recover from it in the next cell of a notebook."""
        if self._failure is not None:
            if not self._renews:
                raise self._failure
            recover(self, None)

    def _wait(self, call: int, length: int, done: int, kernel, arguments: tuple) -> None:
        """Continue a kernel that returned WAIT, or raise the mismatch that it found."""
        self._announce(call, length)
        started, watch = time.monotonic(), Watch(self)
        self._buffers = arguments
        try:
            while done != READY:
                if done == LIBRARY_FAILED:
                    raise MismatchError(
                        f"rank {self.rank} called {self._doing}, in which the MPI library reports "
                        "an error: check that all ranks make the same call"
                    )
                if done != WAIT:
                    if isinstance(arguments[0], messages.Link):  # a tag does not show the call
                        raise self._mismatch(-1 - done, self._ask(-1 - done))
                    raise self._mismatch(self.node[-1 - done], self._call_of(-1 - done))
                self._look_around(started, watch)
                done = kernel(*arguments)
        except BaseException as error:
            spans.end_wait()  # this wait ends here, not in the next one
            self.abort(error)
            raise
        self._buffers = ()  # do not keep memory alive that the caller has dropped
        watch.end(time.monotonic() - started)

    def _announce(self, call: int, length: int) -> None:
        """Write this rank's call on the board, for ranks that wait in a different call."""
        self._doing = calls.describe(call, length)
        self._waits_in = self._count, call, length
        self._suspect = None
        if self.board is not None:
            mine = self.board[self.place]
            mine[board.WAITING], mine[board.LENGTH] = call, length
            mine[board.NUMBER] = self._count

    @spans.announces("wait")
    def _until(self, finished, seconds: float | None = None) -> None:
        """Wait in Python until `finished()`; used in set-up, where microseconds don't matter."""
        started, watch = time.monotonic(), Watch(self if self._mailbox else self._within)
        try:
            while not finished():
                self._look_around(started, watch, seconds)
        except BaseException as error:
            self.abort(error)
            if self._within is not None:
                self._within.abort(error)
            raise
        watch.end(time.monotonic() - started)

    def _look_around(self, started: float, watch: Watch, seconds: float | None = None) -> None:
        """Between two polls, handle signals, read the mailbox, compare calls, and sleep."""
        waited = time.monotonic() - started
        self._heed()
        if self._within is not None:
            self._within._heed()
        limit = seconds or self.deadline
        if limit is not None and waited > limit:
            raise DeadlineError(
                f"rank {self.rank} waited {waited:.1f} s in {self._doing}; the limit is {limit} s"
            )
        if self.board is not None and waited > PATIENCE:
            self._compare()
        watch.look(waited)
        # Do not keep a core busy in a long wait: sleep 1% of the time, at most a millisecond.
        time.sleep(min(0.001, waited / 100))

    def _compare(self) -> None:
        """Raise MismatchError if a rank of this node waits in a different call of this number."""
        number, *mine = self._waits_in
        for peer, theirs in zip(self.node, self.board, strict=True):
            said = tuple(map(int, theirs[[board.NUMBER, board.WAITING, board.LENGTH]]))
            if said[0] == number and calls.differ(mine, said[1:]):
                if self._suspect == (peer, said):  # seen twice, so it was not half-written
                    raise self._mismatch(peer, calls.describe(*said[1:]))
                self._suspect = (peer, said)
                return

    def _mismatch_told(self, letter: Letter) -> MismatchError:
        """Return another rank's mismatch, from this rank's view if this rank's call differs."""
        number, *theirs = letter.call
        if tuple(theirs) != self._waits_in[1:] and number == self._count:
            return self._mismatch(letter.rank, calls.describe(*theirs))
        return MismatchError(letter.text)

    def _mismatch(self, peer: int, theirs: str | None) -> MismatchError:
        theirs = f"rank {peer} called {theirs}" if theirs else f"rank {peer} made another call"
        return MismatchError(f"rank {self.rank} called {self._doing}, but {theirs}")

    def _ask(self, peer: int) -> str | None:
        """Ask rank `peer` for its call; None if it does not answer soon.

        It answers if it waits in that call, or finds the mismatch too.
        """
        mail, end = self._mailbox, time.monotonic() + 2 * COMPARE
        mail.post(WAITS, "", self._waits_in, [peer])
        while time.monotonic() < end:
            mail.collect()
            note = mail.waits.get(peer) or mail.failures.get(peer)
            if note and note.kind in (WAITS, MISMATCH) and note.call[0] >= self._count:
                return calls.describe(*note.call[1:])
            time.sleep(0.001)
        return None

    def _call_of(self, place: int) -> str:
        """Return the call that the rank at `place` of this node has announced on the board."""
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

    # Setting up

    def _duplicate(self, comm: MPI.Comm) -> MPI.Comm:
        """Return a new communicator for the ranks of `comm`."""
        try:
            new, request = comm.Idup()
            self._until(request.Test, SETUP_SECONDS)
        except MPI.Exception as error:
            why = str(error).splitlines()[0]
            raise RuntimeError(
                f"MPI has no further communicator ({why}): a process can have about a thousand "
                "teams; close() those that are no longer used"
            ) from None
        return new

    def _set_up(self, seconds: float | None) -> None:
        """After a recovery, make the communicator of this generation.

        This is the only collective on the mailbox's communicator. So its k-th duplicate belongs to
        generation k on every rank, even if a rank was interrupted while it waited for one.
        """
        wipe(self)
        mail = self._mailbox
        while self._duplicates < mail.generation:
            if self._pending is None:
                self._pending = mail.comm.Idup()
            new, request = self._pending
            self._until(request.Test, seconds)
            self._pending = None
            self._duplicates += 1
            old, self.comm = self.comm, new
            if not any(old is comm for comm, *_ in self._lost):
                old.Free()
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        connect(self)
        self._agree()
        mail.again.clear()  # these are of the generation before, which all ranks have left

    def _agree(self) -> None:
        """After a recovery, make other values equal on all ranks; subclasses override this."""

    def _gather(self, numbers: list[int], call: int | None = None, length: int = 0) -> np.ndarray:
        """Gather every rank's integers as int64, shape (size, len(numbers)).

        If `call` is given, this is part of that collective.
        """
        mine = np.array(numbers, np.int64)
        table = np.empty((self.size, mine.size), np.int64)
        if call is not None:
            self._count += 1
            self._announce(call, length)
        request = self.comm.Iallgather(mine, table)
        try:
            self._until(request.Test)
        except BaseException:
            self._lost.append((self.comm, request, mine, table))
            raise
        return table
