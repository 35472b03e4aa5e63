"""Team: ranks that communicate, and never hang.

No wait of a team blocks in C. A wait is a compiled kernel that polls for a few milliseconds without
the GIL and then comes back to Python, where Ctrl-C is noticed, the mailbox is looked into and the
deadline is checked; then it polls on. So when a rank fails, the others raise PeerError instead of
waiting for ever, and the stop button works.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from functools import cached_property

import numpy as np
from mpi4py import MPI

from . import board, calls, messages, mpi, window
from .allreduce import allreduce as _allreduce
from .allreduce import ring, tree
from .allreduce.elementwise import bounds, op_code
from .allreduce.shared_memory import ELSEWHERE
from .board import READY, WAIT
from .errors import DeadlineError, MismatchError, PeerError
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
        self._failure: BaseException | None = None
        self._mailbox: Mailbox | None = None
        self._doing = "making the team"
        self.comm = self._duplicate(comm)
        self._mailbox = Mailbox(self._duplicate(comm))
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._scratch: dict[np.dtype, np.ndarray] = {}
        self._calls = 0
        shared = shared and os.environ.get("NUMBA_KERNELS_WINDOW", "1") != "0"
        self._find_node(shared)
        live.add(self)

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
        table = self._gather([color, key])
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
        made = window.create(stride * ranks) if self.rank == leader and ranks > 1 else -1
        self._doing = calls.describe(calls.encode("empty", dtype), n)
        try:
            table = self._gather([os.getpid(), made, n, calls.DTYPES.index(dtype)])
            for peer in range(self.size):
                if (table[peer, 2:] != table[self.rank, 2:]).any():
                    other = calls.encode("empty", calls.DTYPES[table[peer, 3]])
                    raise self._mismatch(peer, calls.describe(other, table[peer, 2]))
            if ranks == 1:
                self._gather([1])
                return window.aligned(n, dtype)
            pid, descriptor = map(int, table[leader, :2])
            place = self.node.index(self.rank)
            memory = None
            left = self._gather([window.available()])[list(self.node), 0].min()
            if stride * ranks <= left and window.reserve(pid, descriptor, place * stride, stride):
                memory = window.attach(pid, descriptor, ranks * stride)
            if not self._gather([memory is not None])[:, 0].all():
                raise MemoryError(
                    f"no memory for a window of {ranks} x {stride / 2**20:.1f} MiB: "
                    f"{left / 2**20:.0f} MiB are left on this node"
                )
            return self._window.add(memory, stride, dtype)[:n]
        finally:
            if made >= 0:
                os.close(made)

    def slice_of(self, n: int, rank: int | None = None) -> tuple[int, int]:
        """[first, last) of n elements that are `rank`'s share (default: this rank's)."""
        return bounds(n, self.size, self.rank if rank is None else rank)

    def abort(self, error: BaseException) -> None:
        """Tell all other ranks that this one failed: they raise PeerError where they wait."""
        if self._failure is None:
            self._failure = error
        if self._mailbox is not None:
            messages.cancel(self._link)
            if isinstance(error, MismatchError):
                self._mailbox.post(MISMATCH, self._doing)
            else:
                followed = isinstance(error, PeerError)
                text = str(error) if followed else f"{type(error).__name__}: {error}"
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
        if done != READY:
            self._wait(call, x.size, done, kernel, (self._node, call, x, *arguments))
        return True

    def by_messages(self, call: int, length: int, dtype, kernel, arguments: tuple) -> None:
        """Run a resumable kernel that exchanges messages."""
        self._ready()
        link = self._link
        self._calls += 1
        link.words[messages.AT] = 0
        link.words[messages.TAG] = calls.tag(call, length, self._calls)
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
        self._doing = calls.describe(call, length)
        started = time.monotonic()
        try:
            while done != READY:
                if done != WAIT:
                    raise self._mismatch(-1 - done, self._call_of(-1 - done))
                self._look_around(started)
                done = kernel(*arguments)
        except BaseException as error:
            self._abandoned = arguments  # MPI may still write there
            self.abort(error)
            raise

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
        """Between two polls: let signals through, read the mail, check the deadline, rest."""
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
        # A long wait need not keep a core busy: rest for 1% of it, at most a millisecond.
        time.sleep(min(0.001, waited / 100))

    def _mismatch(self, peer: int, theirs: str | None) -> MismatchError:
        theirs = f"rank {peer} called {theirs}" if theirs else f"rank {peer} called something else"
        return MismatchError(f"rank {self.rank} called {self._doing}, but {theirs}")

    def _call_of(self, peer: int) -> str | None:
        """What `peer` says on the board that it calls."""
        if not self.single_node:
            return None
        turn = board.CALL + 2 * (int(self.board[self.rank, board.COUNT]) & 1)
        return calls.describe(*map(int, self.board[peer, turn : turn + 2]))

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

    def _gather(self, numbers: list[int]) -> np.ndarray:
        """Every rank's integers, shape (size, len(numbers))."""
        mine = np.array(numbers, np.int64)
        table = np.empty((self.size, mine.size), np.int64)
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
        made = window.create(nbytes) if self.rank == leader else -1
        pid, descriptor = map(int, self._gather([os.getpid(), made])[leader])
        memory = window.attach(pid, descriptor, nbytes)
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


def abort_all(error: BaseException) -> None:
    """Tell the ranks of every team of this process that it failed."""
    for team in list(live):
        team.abort(error)
