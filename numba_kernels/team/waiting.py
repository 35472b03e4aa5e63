"""How a team waits: bounded polls in compiled code, with checks in Python in between.

No wait blocks in C. A compiled kernel polls for a few milliseconds without the GIL and then returns
to Python, where Ctrl-C is noticed, the mailbox is read and the deadline is checked; then it polls
again. So when a rank fails, the others raise PeerError instead of waiting for ever, and a
notebook's stop button works.
"""

import functools
import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from .. import spans
from ..allreduce import calls, messages
from ..allreduce.leaders import FAR
from ..allreduce.mpi import FAILED as LIBRARY_FAILED
from ..allreduce.shared_memory import ELSEWHERE
from ..errors import DeadlineError, MismatchError, TeamError
from ..jit import mpi_functions as mpi
from ..shared import board
from ..shared.board import READY, WAIT
from ..shared.node_array import AT, SPINS
from ..shared.node_array import PATIENCE as MICROSECONDS
from .failure import Failing
from .mailbox import MISMATCH, WAITS, Letter
from .recovery import recover
from .siblings import FirstWatch
from .stall import COMPARE, Watch

PATIENCE = 0.005  # seconds that a kernel polls before it returns to Python
# Within which all ranks must begin to make a team, if those that are late are not known to live.
SETUP_SECONDS = 120.0


@functools.cache
def _given_up() -> int:
    """The key of an attribute: duplicates of the communicator that this rank did not wait for."""
    return MPI.Comm.Create_keyval()


class Waiting(Failing):
    """The part of a team that runs kernels and makes communicators (see team.py)."""

    # What kernels on the node need: (ranks of the node, WORDS) int64, one row per rank, and
    # shared/node_array.py; None in the world.
    board: np.ndarray | None = None
    node_array: np.ndarray | None = None
    # While this team is being made: what receives and reports failures, and its ranks there.
    within: Failing | None = None
    mates: dict[int, int]  # {rank in `within`: rank in this team}
    flush: messages.Flush | None = None  # of a recovery that was interrupted
    heeds: Failing | None = None  # a team whose recovery is waiting for this one's
    _suspect = None  # (rank, its call) that may not match, seen once

    def __init__(self, rank: int, size: int, deadline: float | None):
        super().__init__(rank, size)
        self.deadline = deadline  # seconds after which a wait raises DeadlineError; None: no limit
        self.processes: dict[int, int] = {}  # {rank: pid} of the other ranks on this machine
        # Duplicates of the mailbox's communicator, in the order of generations from 1. The last one
        # may still be under way.
        self._duplicates: list[tuple[MPI.Comm, MPI.Request]] = []

    @property
    def spins(self) -> int:
        return int(self.node_array[SPINS])

    @property
    def patience(self) -> int:
        """Microseconds that a kernel polls before it returns to Python."""
        return int(self.node_array[MICROSECONDS])

    def make_within(self, whole: Failing, ranks: Sequence[int]) -> None:
        """Heed only the `ranks` of `whole`, which form this team, until it is made."""
        self.within, self.mates = whole, {rank: own for own, rank in enumerate(ranks)}
        self.world_ranks = [whole.world_ranks[rank] for rank in ranks]
        self.processes = {
            own: whole.pid(rank) for own, rank in enumerate(ranks) if whole.pid(rank) is not None
        }

    def pid(self, rank: int) -> int | None:
        """Return the process id of another rank on this machine; None if it is on another one."""
        return self.processes.get(rank)

    def on_node(
        self, kernel, call: int, x: np.ndarray, *arguments, length: int | None = None
    ) -> bool:
        """Run a resumable kernel among the ranks of the node.

        Halves are passed as integers with the same bits (halves.py). `length` is that of the call,
        equal on all ranks; None: that of `x`. Returns False if the kernel needs `x` in a window
        and it does not lie in one.
        """
        self.ready()
        self.node_array[AT] = 0
        done = kernel(self.node_array, call, x, *arguments)
        if done == ELSEWHERE:
            return False
        self.count += 1
        if done != READY:
            length = x.size if length is None else length
            self._wait(call, length, done, kernel, (self.node_array, call, x, *arguments))
        return True

    def by_messages(
        self, call: int, length: int, dtype, kernel, arguments: tuple, route=None
    ) -> None:
        """Run a resumable kernel that exchanges messages, over all ranks or those of `route`."""
        self.ready()
        if length > 2**31 - 1:
            raise ValueError(f"elements in a message must be at most 2^31 - 1 (MPI), got {length}")
        link, *numbers = route or self.routes[0]
        self.count += 1
        link.words[messages.AT] = 0
        link.words[messages.TAG] = calls.tag(call, length, self.count)
        link.handles[messages.DATATYPE] = mpi.datatype(dtype)
        self.run_exchange(call, length, kernel, (link, *numbers, *arguments))

    def by_leaders(self, kernel, call: int, x: np.ndarray, *arguments) -> None:
        """Run a resumable kernel on the node whose first rank also exchanges messages (leaders.py).

        Its arguments are the node array, what messages.link_at needs, call, x and `arguments`.
        """
        self.ready()
        link, wire = self.lanes.leading
        self.count += 1
        self.node_array[AT] = link.words[messages.AT] = 0
        link.words[messages.TAG] = calls.tag(call, x.size, self.count)
        link.handles[messages.DATATYPE] = mpi.datatype(x.dtype)
        all_of_it = (self.node_array, link.handles, wire, call, x, *arguments)
        self.run_exchange(call, x.size, kernel, all_of_it)

    def run_exchange(self, call: int, length: int, kernel, arguments: tuple) -> None:
        """Run a resumable kernel whose messages are those of `call`, the count of which is made."""
        # Noted before it runs: Ctrl-C may end this call as soon as the kernel returns, and MPI
        # still writes to what is in flight.
        self.buffers = arguments
        done = kernel(*arguments)
        if done != READY:
            self._wait(call, length, done, kernel, arguments)
        self.buffers = ()

    def set_operation(self, handle: int) -> None:
        self.routes[0].link.handles[messages.OP] = handle

    def skip(self) -> None:
        """Count a collective in which this rank takes no part, so that counts stay equal."""
        self.count += 1

    def ready(self) -> None:
        """Raise the failure of the team, or recover from it in the next cell of a notebook."""
        if self.failure is not None:
            if not self.renews:
                raise self.failure
            recover(self, None)

    def _wait(self, call: int, length: int, done: int, kernel, arguments: tuple) -> None:
        """Continue a kernel that returned WAIT, or raise the mismatch that it found."""
        self._announce(call, length)
        watch = Watch(self)
        watch.on_board = not isinstance(arguments[0], messages.Link)
        self.buffers = arguments
        try:
            with watch:
                self._poll(watch, done, kernel, arguments)
        except BaseException as error:
            spans.end_wait()  # this wait ends here, not in the next one
            self.abort(error, heard=True)
            raise
        self.buffers = ()  # do not keep memory alive that the caller has dropped
        watch.end(time.monotonic() - watch.began)

    def _poll(self, watch: Watch, done: int, kernel, arguments: tuple) -> None:
        started = watch.began
        while done != READY:
            if done == LIBRARY_FAILED:
                raise MismatchError(
                    {self.rank: self.doing},
                    f"rank {self.rank} called {self.doing}, in which the MPI library reports "
                    "an error: check that all ranks make the same call",
                )
            if done != WAIT:
                if done < -FAR:
                    raise self.mismatch(-1 - FAR - done, self._ask(-1 - FAR - done))
                if watch.on_board:
                    raise self.mismatch(self.node[-1 - done], self._call_of(-1 - done))
                # a tag does not show the call
                raise self.mismatch(-1 - done, self._ask(-1 - done))
            self._look_around(started, watch)
            # Do not keep a core busy in a long wait: sleep 1% of the time, at most 1 ms.
            time.sleep(min(0.001, (time.monotonic() - started) / 100))
            done = kernel(*arguments)

    def _announce(self, call: int, length: int) -> None:
        """Write this rank's call on the board, for ranks that wait in a different call."""
        self.doing = calls.describe(call, length)
        self.waits_in = self.count, call, length
        self._suspect = None
        if self.board is not None:
            mine = self.board[self.place]
            mine[board.WAITING], mine[board.LENGTH] = call, length
            mine[board.NUMBER] = self.count

    @spans.announces("wait")
    def wait_until(self, finished, seconds: float | None = None, sleep=time.sleep) -> None:
        """Wait in Python until `finished()`; used in set-up, where microseconds don't matter.

        So nearly all of the time is slept, and ranks that share a core do not hold each other up.
        """
        watch = Watch(self)
        if self.letters is None:  # it is being made
            whole = self.within
            watch = FirstWatch(self) if whole is None else Watch(whole, self.mates)
        started = watch.began
        try:
            with watch:
                while not finished():
                    self._look_around(started, watch, seconds)
                    sleep(min(0.001, (time.monotonic() - started) / 4 + 2e-5))
        except BaseException as error:
            self._fail_to_make(error)
            raise
        watch.end(time.monotonic() - started)

    def _fail_to_make(self, error: BaseException) -> None:
        self.abort(error, heard=True)
        if self.within is not None:
            self.within.tell_anew(error)

    def _look_around(self, started: float, watch: Watch, seconds: float | None = None) -> None:
        """Between two polls, handle signals, read the mailbox and compare calls."""
        waited = time.monotonic() - started
        self.heed()
        if self.within is not None:
            self.within.heed_for(self)
        if self.heeds is not None:
            self.heeds.heed()
        limit = seconds or self.deadline
        if limit is not None and waited > limit:
            late = watch.unheard()
            # Those that are on this machine and live may yet come; if all have come, it takes time.
            hope = all(map(watch.starts, late)) if late else waited < 2 * limit
            if self.letters is not None or not hope:
                raise DeadlineError(self.rank, self.doing, waited, limit, late)
        if self.board is not None and waited > PATIENCE:
            self._compare()
        watch.look(waited)

    def _compare(self) -> None:
        """Raise MismatchError if a rank of this node waits in a different call of this number."""
        number, *mine = self.waits_in
        for peer, theirs in zip(self.node, self.board, strict=True):
            said = tuple(map(int, theirs[[board.NUMBER, board.WAITING, board.LENGTH]]))
            if said[0] == number and calls.differ(mine, said[1:]):
                if self._suspect == (peer, said):  # seen twice, so it was not half-written
                    raise self.mismatch(peer, calls.describe(*said[1:]))
                self._suspect = (peer, said)
                return

    def _mismatch_told(self, letter: Letter) -> MismatchError:
        """Return another rank's mismatch, from this rank's view if this rank's call differs."""
        number, *theirs = letter.call
        if tuple(theirs) != self.waits_in[1:] and number == self.count:
            return self.mismatch(letter.rank, calls.describe(*theirs))
        return MismatchError({letter.rank: calls.describe(*theirs)}, letter.text)

    def mismatch(self, rank: int, theirs: str | None) -> MismatchError:
        return MismatchError({self.rank: self.doing, rank: theirs})

    def _ask(self, peer: int) -> str | None:
        """Ask rank `peer` for its call; None if it does not answer soon."""
        mail, end = self.letters, time.monotonic() + 2 * COMPARE
        mail.post(WAITS, "", self.waits_in, [peer])
        while time.monotonic() < end:
            mail.collect()
            note = mail.waits.get(peer) or mail.failures.get(peer)
            if note and note.kind in (WAITS, MISMATCH) and note.call[0] >= self.count:
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

    def duplicate(self, comm: MPI.Comm) -> MPI.Comm:
        if comm.Get_attr(_given_up()):
            error = TeamError(
                "a rank failed while a team was made from this communicator: make the team from "
                "comm.Create_group(comm.group)"
            )
            self._fail_to_make(error)
            raise error
        # An exception may end this wait. Some ranks have begun this duplicate then, and others may
        # not have. Their next one would be taken for it, and all ranks would wait for ever.
        begun: list[tuple[MPI.Comm, MPI.Request]] = []
        comm.Set_attr(_given_up(), begun)
        new = self.duplicate_number(0, begun, comm, SETUP_SECONDS)
        begun.clear()
        return new

    def duplicate_number(self, number: int, begun: list, comm: MPI.Comm, seconds) -> MPI.Comm:
        """Return duplicate `number` of `comm`; those before it and perhaps it itself are `begun`.

        A rank that was interrupted here, wherever it was, goes on with the one that it has begun.
        """
        try:
            if len(begun) == number:
                # Signals are handled between calls of functions in C, so this is one call: once
                # a duplicate has begun, it is in the list.
                begun.extend(map(comm.Idup, [None]))
            new, request = begun[number]
            self.wait_until(request.Test, seconds)
        except MPI.Exception as error:
            why = str(error).splitlines()[0]
            raise RuntimeError(
                f"MPI has no further communicator ({why}): a process can have about a thousand "
                "teams; close() those that are no longer used"
            ) from None
        return new

    def set_up(self, seconds: float | None) -> None:
        """After a recovery, empty the communicator of the last generation, and make this one's.

        Making it is the only collective on the mailbox's communicator. So its k-th duplicate
        belongs to generation k on every rank, even if a rank was interrupted while it waited for
        one.
        """
        self.sets_up = True
        try:
            self._set_up(seconds)
            self.count += 1  # of this generation: this rank is through
        except BaseException as error:
            self.abort(error, heard=True)
            raise
        finally:
            self.sets_up = False

    def _set_up(self, seconds: float | None) -> None:
        if self.board is not None:  # clear this rank's part of it, and the progress of its kernel
            self.board[self.place] = 0
            self.node_array[AT] = 0
        mail = self.letters
        for number in range(max(0, len(self._duplicates) - 1), mail.generation):
            if len(self._duplicates) == number:
                self._discard(seconds)
            new = self.duplicate_number(number, self._duplicates, mail.comm, seconds)
            old, self.comm = self.comm, new
            if old is not new and not any(old is comm for comm, *_ in self.lost):
                old.Free()
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        for link, *_ in self.routes:
            link.handles[messages.COMM] = mpi.handle(self.comm)
            link.words[[messages.AT, messages.POSTED]] = 0
        self._agree()
        mail.again.clear()  # these are of the generation before, which all ranks have left

    def _discard(self, seconds: float | None) -> None:
        """Receive and discard what is in flight; all ranks have left the calls of `comm`."""
        if self.routes:
            if self.flush is None or self.flush.comm is not self.comm:
                self.flush = messages.Flush(self.comm, self.abandoned)
            self.wait_until(lambda: not self.flush.missing(), seconds)

    def _agree(self) -> None:
        """After a recovery, make other values equal on all ranks; subclasses override this."""

    def gather(self, numbers: list[int], call: int | None = None, length: int = 0) -> np.ndarray:
        """Gather every rank's integers: int64, (size, len(numbers)). It may be part of a `call`."""
        mine = np.array(numbers, np.int64)
        table = np.empty((self.size, mine.size), np.int64)
        if call is not None:
            self.count += 1
            self._announce(call, length)
        kept = [self.comm, mine, table]  # MPI writes there until this has ended
        self.lost.append(kept)
        kept.extend(map(self.comm.Iallgather, [mine], [table]))
        self.wait_until(kept[-1].Test)
        self.lost[:] = [each for each in self.lost if each is not kept]
        return table
