"""Team: ranks that communicate, and never hang.

No wait of a team blocks in C. A wait is a compiled kernel that polls for a few milliseconds without
the GIL and then comes back to Python, where Ctrl-C is noticed, the mailbox is looked into and the
deadline is checked; then it polls on. So when a rank fails, the others raise PeerError instead of
waiting for ever, and the stop button works.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import cached_property

import numpy as np
from mpi4py import MPI

from . import board, calls, messages, mpi, window
from .allreduce import allreduce as _allreduce
from .allreduce import ring, tree
from .allreduce.elementwise import bounds, op_code
from .allreduce.shared_memory import ELSEWHERE
from .board import READY, WAIT
from .errors import DeadlineError, MismatchError, PeerError, TeamError
from .mailbox import FAILED, FOLLOWED, MISMATCH, Letter, Mailbox
from .node import AT, WORDS, node_array

PATIENCE = 0.005  # seconds that a kernel polls before it lets Python look around
SETUP_SECONDS = 120.0  # ranks may take this long to all reach the making of a team
live: weakref.WeakSet[Team] = weakref.WeakSet()


class Team:
    """The ranks of a communicator, with collectives on float32 and float64 vectors.

    Args:
        comm: any mpi4py intracommunicator; it is duplicated. Making a team is collective.
        shared: use memory shared within the node. False (or NUMBA_KERNELS_WINDOW=0) sends messages
            even between ranks of one node.
        deadline: seconds after which a wait raises DeadlineError; None waits as long as it takes
            (a rank may be computing).

    Attributes:
        rank, size: this rank's number and how many there are
        comm: this team's own communicator
        node: the ranks that share memory with this one, itself included, in order
    """

    def __init__(
        self,
        comm: MPI.Comm = MPI.COMM_WORLD,
        *,
        shared: bool = True,
        deadline: float | None = None,
    ):
        if not isinstance(comm, MPI.Comm) or comm == MPI.COMM_NULL:
            raise TypeError(f"a Team is made of an mpi4py communicator, not {comm!r}")
        self.rank, self.size = comm.rank, comm.size
        self.deadline = deadline
        self.is_cause = False  # of a failure: it failed, and knew of no other that had
        self._link: messages.Link | None = None
        self._failure: BaseException | None = None
        self._mailbox: Mailbox | None = None
        self._doing, self._suspect = "making the team", None
        self.board: np.ndarray | None = None
        self.comm = self._duplicate(comm)
        self._mailbox = Mailbox(self._duplicate(comm))
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._scratch: dict[np.dtype, np.ndarray] = {}
        self._count = 0  # collectives so far: the same on all ranks
        shared = shared and os.environ.get("NUMBA_KERNELS_WINDOW", "1") != "0"
        self._find_node(shared)
        live.add(self)
        _tell_of_exceptions()

    # What users call

    def allreduce(self, x: np.ndarray, op: str = "sum", algorithm: str = "auto") -> np.ndarray:
        """Reduce `x` over all ranks, in place; see `numba_kernels.allreduce`."""
        return _allreduce(self, x, op, algorithm)

    def reduce_scatter(self, x: np.ndarray, op: str = "sum") -> np.ndarray:
        """Reduce `x` over all ranks; returns the view of `x` that is this rank's slice of it.

        Slices are those of `self.slice_of`; the rest of `x` is scratch afterwards.
        """
        flat = calls.vector(x)
        calls.check_op(op)
        if self.size > 1:
            factor = 1.0 / self.size if op == "mean" else 1.0
            incoming = self.scratch(flat.size // self.size + 64, flat.dtype)
            call = calls.encode("reduce_scatter", flat.dtype, op)
            arguments = (flat, incoming, op_code(op), factor)
            self.by_messages(call, flat.size, flat.dtype, ring.reduce_scatter, arguments)
        first, last = self.slice_of(flat.size)
        return flat[first:last]

    def allgather(self, x: np.ndarray) -> np.ndarray:
        """Every rank's `x` (shape (n,), the same on all) as rows of an array of shape (size, n)."""
        flat = calls.vector(x)
        padded = -(-flat.size // 16) * 16  # rows are slices of the ring: whole cache lines
        out = np.zeros((self.size, padded), flat.dtype)
        out[self.rank, : flat.size] = flat
        if self.size > 1:
            call = calls.encode("allgather", flat.dtype)
            self.by_messages(call, flat.size, flat.dtype, ring.allgather, (out.reshape(-1), 0))
        return out[:, : flat.size]

    def broadcast(self, x: np.ndarray, root: int = 0) -> np.ndarray:
        """Make `x` on every rank what it is on rank `root`, in place; returns `x`."""
        flat = calls.vector(x)
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} is not a rank of this team of {self.size}")
        if self.size > 1:
            call = calls.encode("broadcast", flat.dtype, root=root)
            self.by_messages(call, flat.size, flat.dtype, tree.down, (flat, root, 0))
        return x

    def barrier(self) -> None:
        """Return when every rank has called this."""
        if self.size == 1:
            return
        call = calls.encode("barrier")
        if self.single_node:
            self._ready()
            self._node[AT] = 0
            self._count += 1
            done = board.meet(self._node, call, 0)
            if done != READY:
                self._wait(call, 0, done, board.meet, (self._node, call, 0))
        else:
            nothing = np.zeros(1, np.float32)
            arguments = (nothing, self.scratch(1, np.dtype("float32")), 0, 1.0)
            self.by_messages(call, 0, nothing.dtype, tree.allreduce, arguments)

    def split(self, color: int, key: int = 0) -> Team:
        """The team of all ranks that gave the same `color`, ordered by `key`, then by rank."""
        self._ready()
        table = self._gather([color, key], calls.encode("split"))
        members = sorted(
            (r for r in range(self.size) if table[r, 0] == color), key=lambda r: (table[r, 1], r)
        )
        group = self.comm.group.Incl(members)
        # MPI offers no form of this that can be polled; so it runs on a thread, and we wait.
        made: list[MPI.Comm] = []
        thread = threading.Thread(
            target=lambda: made.append(self.comm.Create_group(group)), daemon=True
        )
        thread.start()
        self._until(lambda: not thread.is_alive(), SETUP_SECONDS)
        team = Team(made[0], shared=self.shared, deadline=self.deadline)
        made[0].Free()
        return team

    def empty(self, n: int, dtype=np.float32) -> np.ndarray:
        """Zeroed memory for `n` elements, 64-byte aligned, in a window the node's ranks share.

        Collective: all ranks ask for the same n and dtype. Every rank gets its own array; an
        allreduce of corresponding arrays (or slices) copies nothing. Where ranks share no memory
        it is ordinary memory. It is freed when no array looks at it any more, on all ranks.

        Raises MemoryError on all ranks when the node's memory does not suffice.
        """
        dtype = np.dtype(dtype)
        if dtype not in calls.DTYPES:
            raise TypeError(f"dtype {dtype} in a window; float32 or float64 is needed")
        if n < 0:
            raise ValueError(f"{n} elements in a window; 0 or more are needed")
        self._ready()
        leader, ranks = self.node[0], len(self.node)
        stride = window.row_bytes(n, dtype)
        made, name = -1, 0
        if self.rank == leader and ranks > 1:
            with suppress(OSError, OverflowError):
                made, name = window.create(stride * ranks)
        call = calls.encode("empty", dtype)
        kind, full = calls.DTYPES.index(dtype), self._window.full
        try:
            # Three rounds, which every rank takes part in, whatever its own news are.
            table = self._gather([os.getpid(), made, name, full, n, kind], call, n)
            for peer in range(self.size):
                if (table[peer, 4:] != table[self.rank, 4:]).any():
                    other = calls.encode("empty", calls.DTYPES[table[peer, 5]])
                    raise self._mismatch(peer, calls.describe(other, table[peer, 4]))
            pid, descriptor, name = map(int, table[leader, :3])
            left = self._gather([window.available()], call, n)[list(self.node), 0].min()
            memory = None
            if ranks > 1 and descriptor >= 0 and not full and stride * ranks <= left:
                place = self.node.index(self.rank) * stride
                if window.reserve(pid, descriptor, name, place, stride):
                    memory = window.attach(pid, descriptor, name, ranks * stride)
            enough = memory is not None if ranks > 1 else stride <= left
            got = self._gather([enough], call, n)[:, 0]
            if table[:, 3].any():
                raise MemoryError(
                    f"a team has at most {window.MOST} windows at once: drop some arrays first"
                )
            if not got.all():
                raise MemoryError(
                    f"no memory for a window of {ranks} x {stride / 2**20:.1f} MiB: "
                    f"{left / 2**20:.0f} MiB are left on rank {self.rank}'s node"
                )
        finally:
            if made >= 0:
                os.close(made)
        return (
            window.aligned(n, dtype)
            if memory is None
            else self._window.add(memory, stride, dtype)[:n]
        )

    def slice_of(self, n: int, rank: int | None = None) -> tuple[int, int]:
        """[first, last) of n elements that are `rank`'s share (default: this rank's)."""
        return bounds(n, self.size, self.rank if rank is None else rank)

    def abort(self, error: BaseException) -> None:
        """Tell all other ranks that this one failed: they raise PeerError where they wait."""
        if self._failure is None:
            self._failure = error
            if not isinstance(error, TeamError):  # not KeyboardInterrupt again at every call
                text = f"this team can't be used: {type(error).__name__} in {self._doing}"
                self._failure = TeamError(text)
        if self._mailbox is None or self._mailbox.sent or self._link is None:
            return
        messages.cancel(self._link)
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

    def close(self) -> None:
        """Give the communicators back. Collective; the team can't be used afterwards."""
        if self._failure is None:
            self.barrier()
            self._failure = RuntimeError("this team was closed")
            self._mailbox.comm.Free()
            self._mailbox = None
            self.comm.Free()
            live.discard(self)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is None:
            self.close()
        else:
            self.abort(error)

    def __repr__(self):
        nodes = "one node" if self.single_node else f"{len(self.node)} on this node"
        return f"Team(rank {self.rank} of {self.size}, {nodes})"

    # What collectives are made of

    def peers(self, x: np.ndarray) -> list[np.ndarray] | None:
        """The counterparts of `x`, which lies in a window, on all ranks of the node: no copies.

        None where `x` lies in no window of this team. Look at them between barriers only.
        """
        return self._window.peers(calls.vector(x)) if self.node else None

    def scratch(self, n: int, dtype: np.dtype) -> np.ndarray:
        """At least `n` elements of private memory, kept from call to call."""
        if dtype not in self._scratch or self._scratch[dtype].size < n:
            self._scratch[dtype] = window.aligned(n, dtype)
        return self._scratch[dtype]

    def on_node(self, kernel, call: int, x: np.ndarray, *arguments) -> bool:
        """Run a resumable kernel in the window that `x` lies in; False if it lies in none."""
        self._ready()
        if not self.single_node:
            return False
        self._node[AT] = 0
        done = kernel(self._node, call, x, *arguments)
        if done == ELSEWHERE:
            return False
        self._count += 1
        if done != READY:
            self._wait(call, x.size, done, kernel, (self._node, call, x, *arguments))
        return True

    def by_messages(self, call: int, length: int, dtype, kernel, arguments: tuple) -> None:
        """Run a resumable kernel that exchanges messages."""
        self._ready()
        link = self._link
        self._count += 1
        link.words[messages.AT] = 0
        link.words[messages.TAG] = calls.tag(call, length, self._count)
        link.handles[messages.DATATYPE] = self._datatypes[dtype]
        all_of_it = (link, self.rank, self.size, *arguments)
        done = kernel(*all_of_it)
        if done != READY:
            self._wait(call, length, done, kernel, all_of_it)

    @cached_property
    def _datatypes(self):
        return {dtype: mpi.datatype(dtype) for dtype in calls.DTYPES}

    # Waiting

    def _ready(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait(self, call: int, length: int, done: int, kernel, arguments: tuple) -> None:
        """Go on with a kernel that said WAIT, or that found a mismatch."""
        self._announce(call, length)
        started = time.monotonic()
        try:
            while done != READY:
                if done != WAIT:
                    met = kernel is not board.meet and arguments[0] is self._link
                    raise self._mismatch(-1 - done, None if met else self._call_of(-1 - done))
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
        mine = self.board[self.node.index(self.rank)]
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
        mine = self.board[self.node.index(self.rank)]
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

    def _call_of(self, peer: int) -> str | None:
        """What `peer` says on the board that it calls."""
        if not self.single_node:
            return None
        turn = board.CALL + 2 * (int(self.board[self.rank, board.COUNT]) & 1)
        call, length = map(int, self.board[peer, turn : turn + 2])
        same = call == self.board[self.rank, turn]
        same = same and (length - int(self.board[self.rank, turn + 1])) % board.LENGTHS == 0
        where = " of another part of a window" if same else ""
        return calls.describe(call, length % board.LENGTHS) + where

    # Setting up

    def _duplicate(self, comm: MPI.Comm) -> MPI.Comm:
        try:
            new, request = comm.Idup()
            self._until(request.Test, SETUP_SECONDS)
        except MPI.Exception as error:
            why = str(error).splitlines()[0]
            raise RuntimeError(
                f"MPI gives no further communicator ({why}): a process may hold some thousand "
                "teams; close() those that are no longer used"
            ) from None
        return new

    def _gather(self, numbers: list[int], call: int | None = None, length: int = 0) -> np.ndarray:
        """Every rank's integers, shape (size, len(numbers)); as part of the collective `call`."""
        mine = np.array(numbers, np.int64)
        table = np.empty((self.size, mine.size), np.int64)
        if call is not None:
            self._count += 1
            self._announce(call, length)
        request = self.comm.Iallgather(mine, table)
        self._until(request.Test)
        return table

    def _find_node(self, shared: bool) -> None:
        """Find out who shares memory, by sharing some: the board."""
        self.shared = shared
        self._link = messages.link(self.comm, 100, PATIENCE)
        mask = window.cpu_mask()
        table = self._gather([window.node_token() if shared else -1 - self.rank, *mask])
        candidates = np.flatnonzero(table[:, 0] == table[self.rank, 0])
        leader = int(candidates[0])
        nbytes = window.row_bytes(candidates.size * WORDS, np.dtype("float64"))
        made, name = window.create(nbytes) if self.rank == leader else (-1, 0)
        pid, descriptor, name = map(int, self._gather([os.getpid(), made, name])[leader])
        memory = window.attach(pid, descriptor, name, nbytes)
        attached = self._gather([memory is not None])[:, 0].astype(bool)
        if made >= 0:
            os.close(made)
        # Memory is shared by all candidates or by none: half a node helps nobody.
        together = bool(attached[candidates].all())
        self.node = tuple(map(int, candidates)) if together else (self.rank,)
        self.single_node = len(self.node) == self.size
        cores = sum(int(word).bit_count() for word in np.bitwise_or.reduce(table[candidates, 1:]))
        crowded = len(self.node) > cores
        self._link.words[messages.SPINS] = 0 if crowded else 1000
        ranks, place = len(self.node), self.node.index(self.rank)
        if not together:
            memory = np.zeros(nbytes, np.uint8)
        self.board = memory[: ranks * WORDS * 8].view(np.int64).reshape(ranks, WORDS)
        self._window = window.Window(place, ranks)
        self._node, self._tile = node_array(
            self.board, ranks, place, self._window.table, 20 if crowded else 2000, PATIENCE
        )


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
