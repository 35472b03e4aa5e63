"""Team: ranks that communicate without ever hanging.

A Team is one object, written in three files, each a class on top of the one before:

    Failing   failure.py   the failure and the letters about it, what this rank is doing, and what
                           must outlive a failure: messages in flight and their buffers
    Waiting   waiting.py   the node's board, communicators, and the run of a kernel until it is done
    Team      team.py      collectives, windows, and scratch memory

Users call what the docstring of Team names. Rooms above (star, step, compression, trace, and
tutorial_dl) may also use on_node, by_messages, set_operation, skip (to run a kernel as a
collective); peers, scratch, edges, widened, lanes, board (its memory); gather, duplicate,
wait_until, mismatch, ready, failure, generation, is_cause, letters, doing, deadline, pid, spins and
patience. The other attributes without an underscore are for the files of this room.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from time import perf_counter_ns

import numpy as np
from mpi4py import MPI

from .. import spans
from ..allreduce import calls, gather, ring, shared_memory, staged, tree
from ..allreduce.dispatch import allreduce as _allreduce
from ..allreduce.elementwise import SUM, bounds, convert, op_code
from ..allreduce.kernel import follow, move
from ..allreduce.machine import UNMEASURED
from ..environment import share_cores
from ..errors import TeamError
from ..jit.halves import carried, is_half
from ..launcher import never_alone
from ..shared import board, window
from ..shared.board import READY
from ..shared.node_array import AT
from ..shared.segments import unlink_segments
from ..spans import announces
from . import recovery, regrouping, windows
from .collectives import Clock
from .failure import abort_all
from .mailbox import Mailbox
from .waiting import PATIENCE, SETUP_SECONDS, Waiting
from .world import has_all_ranks, processes, ranks_in_world, world_of

__all__ = ["Team", "abort_all"]
FIRST_TAG = 32767  # MPI allows at least these


class Team(Waiting):
    """The ranks of a communicator, with collectives on vectors of numbers.

    Vectors are float32, float64, float16, bfloat16 (from ml_dtypes), int32 or int64.

    Args:
        comm: any mpi4py intracommunicator; it is duplicated. Making a team is collective. Where
            mpiexec or srun started several processes and MPI's world has one, each of them ends
            with status 2 (launcher.py).
        shared: use memory shared within the node. False (or NUMBA_KERNELS_WINDOW=0) sends messages
            even between ranks of one node. (NUMBA_KERNELS_NODE=2 treats every two ranks as a node,
            to try out several nodes on one machine.)
        deadline: seconds after which a wait raises DeadlineError; None waits without a limit, as
            other ranks may be computing. A wait longer than 10 s, or NUMBA_KERNELS_STALL seconds,
            is reported.

    Attributes:
        rank, size: this rank's number, and the number of ranks.
        comm: this team's own communicator.
        node: the ranks that share memory with this one, itself included, in order.
        nodes: for every node, its ranks in order.
        machine: latency and bandwidths by which "auto" chooses (allreduce/costs.py).
        clock: real time.
    """

    clock = Clock()

    @announces("Team")
    def __init__(
        self,
        comm: MPI.Comm = MPI.COMM_WORLD,
        *,
        shared: bool = True,
        deadline: float | None = None,
    ):
        if not isinstance(comm, MPI.Comm) or comm == MPI.COMM_NULL:
            raise TypeError(f"comm must be an mpi4py communicator, not {comm!r}")
        share_cores()
        if MPI.COMM_WORLD.size == 1:
            unlink_segments()
        if comm == MPI.COMM_WORLD and comm.size == 1:
            never_alone(MPI.Get_library_version())
        super().__init__(comm.rank, comm.size, deadline)
        self.world_ranks = ranks_in_world(comm)
        world = world_of(comm)
        if world is not None and has_all_ranks(comm):
            world.ready()
            comm = world.comm if comm == MPI.COMM_WORLD else comm
        if world is not None:
            self.make_within(world, self.world_ranks)
        self._make(comm, shared)

    def _make(self, comm: MPI.Comm, shared: bool) -> None:
        self.comm = self.duplicate(comm)
        self.letters = Mailbox(self.duplicate(comm))
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.processes = processes(self)
        self._scratch: dict[np.dtype, np.ndarray] = {}
        self._edges: dict[int, np.ndarray] = {}
        self.shared = shared and os.environ.get("NUMBA_KERNELS_WINDOW", "1") != "0"
        windows.find_node(self, self.shared, PATIENCE)
        self._forget_machine()
        self.within = None  # from here on, failures are those of this team

    # Public methods

    def allreduce(self, x: np.ndarray, op: str = "sum", algorithm="auto") -> np.ndarray:
        """Reduce `x` over all ranks, in place; see `numba_kernels.allreduce`."""
        if spans.sink is None:
            return _allreduce(self, x, op, algorithm)
        with spans.span("allreduce"):
            return _allreduce(self, x, op, algorithm)

    @announces("reduce_scatter")
    def reduce_scatter(self, x: np.ndarray, op: str = "sum") -> np.ndarray:
        """Reduce `x` over all ranks, and leave the result in this rank's slice of `x`.

        Args:
            x: contiguous array, the same shape and dtype on every rank. Outside this rank's slice
                (`self.slice_of`), of which a view is returned, its content is undefined afterwards.
            op: "sum", "mean", "min", "max" or "product".
        """
        flat = calls.vector(x)
        calls.check_op(op)
        first, last = self.slice_of(flat.size)
        if self.size > 1:
            call = calls.encode("reduce_scatter", flat.dtype, op)
            number, divisor = op_code(op), self.size if op == "mean" else 1
            if self.single_node:
                carrier, edges = carried(flat), self.edges(flat.size)
                if not self.on_node(
                    shared_memory.reduce_scatter, call, carrier, edges, number, divisor
                ):
                    self.on_node(staged.allreduce, call, carrier, edges, number, divisor, False)
            else:
                wide = self.widened(flat)
                follow(self, call, ring.reduce_scatter, wide, number, divisor)
                if wide is not flat:
                    convert(carried(flat[first:last]), wide[first:last])
        return flat[first:last]

    @announces("allgather")
    def allgather(self, x: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """Gather every rank's `x`, a contiguous array of n elements, on all ranks.

        Returns an array of shape (size, n); or, if n differs between ranks, a list of flat arrays
        in the order of ranks.
        """
        flat = calls.vector(x)
        if self.size == 1:
            return flat.copy()[None]
        call = calls.encode("allgather", flat.dtype)
        lengths = np.zeros(self.size, np.int64)
        lengths[self.rank] = flat.size
        self._gather_slices(call, lengths, np.arange(self.size + 1))
        edges = np.concatenate([[0], np.cumsum(lengths)])
        out = np.empty(edges[-1], flat.dtype)
        out[edges[self.rank] : edges[self.rank + 1]] = flat
        self._gather_slices(call, carried(out), edges)
        if (lengths == flat.size).all():
            return out.reshape(self.size, flat.size)
        return np.split(out, edges[1:-1])

    def _gather_slices(self, call: int, flat: np.ndarray, edges: np.ndarray) -> None:
        if self.single_node:
            self.on_node(gather.allgather, call, flat, edges)
        else:
            ends = tuple(edges.tolist())
            move(self, call, ring.allgather, flat, flat, (ends, ends))

    @announces("alltoall")
    def alltoall(self, x: np.ndarray) -> np.ndarray:
        """Send block r of `x`, (size, ...), to rank r; return the blocks received, like `x`."""
        flat = calls.vector(x)
        if x.ndim == 0 or x.shape[0] != self.size:
            raise ValueError(
                f"x must have {self.size} blocks, one per rank, as its first dimension, "
                f"got shape {x.shape}"
            )
        out = np.empty_like(x)
        if self.size == 1:
            out[:] = x
            return out
        call, block = calls.encode("alltoall", flat.dtype), flat.size // self.size
        edges = np.arange(self.size + 1) * block
        self._send_blocks(call, flat, edges, out.reshape(-1), edges, block, flat.size)
        return out

    def _send_blocks(self, call, x, of_x, out, of_out, longest: int, length: int) -> None:
        """Send block r of `x` to rank r, and store what rank r sends in block r of `out`."""
        x, out, own = carried(x), carried(out), self.rank
        if self.single_node:
            blocks = (of_x, out, of_out, longest, length)
            self.on_node(gather.alltoall, call, x, *blocks, length=length)
        else:
            out[of_out[own] : of_out[own + 1]] = x[of_x[own] : of_x[own + 1]]
            edges = tuple(of_x.tolist()), tuple(of_out.tolist())
            move(self, call, gather.in_turn, x, out, edges, length=length)

    @announces("broadcast")
    def broadcast(self, x: np.ndarray, root: int = 0) -> np.ndarray:
        """Copy `x` of rank `root` to `x` of every rank, in place; returns `x`."""
        flat = calls.vector(x)
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} is not a rank of this team of {self.size}")
        if self.size > 1:
            call, flat = calls.encode("broadcast", flat.dtype, root=root), carried(flat)
            if self.single_node:  # an allgather in which the root's slice is all of x
                edges = np.where(np.arange(self.size + 1) > root, flat.size, 0)
                self.on_node(gather.allgather, call, flat, edges)
            else:
                move(self, call, tree.down, flat, flat, more=(root,))
        return x

    @announces("scatter")
    def scatter(self, x: np.ndarray | None, out: np.ndarray, lengths, root: int = 0) -> np.ndarray:
        """Copy slice r of rank `root`'s `x` to `out` of rank r; returns `out`.

        Args:
            x: on rank `root`, a contiguous array of all slices, in the order of ranks; the others
                pass None.
            out: contiguous array of this rank's lengths[rank] elements, of x's dtype.
            lengths: elements in each rank's slice, which may be 0; the same on every rank.
        """
        received = calls.vector(out, "out")
        edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} is not a rank of this team of {self.size}")
        if edges.size != self.size + 1 or received.size != lengths[self.rank]:
            raise ValueError(
                f"lengths must have {self.size} numbers, and that of this rank must be the length "
                f"of out, {received.size}; got {list(lengths)}"
            )
        flat = calls.vector(x) if self.rank == root else received[:0]
        if flat.dtype != received.dtype or (self.rank == root and flat.size != edges[-1]):
            raise ValueError(
                f"x must be {received.dtype}[{edges[-1]}], got {flat.dtype}[{flat.size}]"
            )
        call = calls.encode("scatter", flat.dtype, root=root)
        if self.size == 1:
            received[:] = flat
            return out
        of_out = np.where(np.arange(self.size + 1) > root, received.size, 0)
        longest, length = int(max(lengths)), int(edges[-1])
        edges = edges if self.rank == root else np.zeros_like(edges)
        self._send_blocks(call, flat, edges, received, of_out, longest, length)
        return out

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        begin = 0 if spans.sink is None else perf_counter_ns()
        try:
            if self.size == 1:
                return
            call = calls.encode("barrier")
            if self.single_node:
                self.ready()
                self.node_array[AT] = 0
                self.count += 1
                done = board.meet(self.node_array, call, 0)
                if done != READY:
                    self._wait(call, 0, done, board.meet, (self.node_array, call, 0))
            else:
                nothing = np.zeros(1, np.float32)
                follow(self, call, tree.steps, nothing, SUM, 1, length=0)
        finally:
            if begin:
                spans.record("barrier", begin)

    @announces("split")
    def split(self, color: int, key: int = 0) -> Team:
        """Return the team of the ranks of equal `color`, by `key`, then by rank. Collective."""
        self.ready()
        table = self.gather([color, key], calls.encode("split"))
        members = sorted(
            (r for r in range(self.size) if table[r, 0] == color), key=lambda r: (table[r, 1], r)
        )
        return self.subteam(members, self.comm)

    def subteam(self, members: list[int], comm: MPI.Comm, attempt: int = 0) -> Team:
        """Return the team of `members`, ranks of this one in their new order; all of them call it.

        `comm` has this team's ranks, in order. Calls of another `attempt` are not mixed up with it.
        """
        # From here on this rank waits for ranks of its own part only, and heeds no others.
        part = object.__new__(type(self))
        Waiting.__init__(part, members.index(self.rank), len(members), self.deadline)
        part.make_within(self, members)
        part.attempt = attempt
        group = comm.group.Incl(members)
        # MPI has no nonblocking form of this, so it runs on a thread while we poll.
        # Open MPI makes only the communicator with the lowest (number of `comm`, tag) at a time,
        # and waits for ever for a rank that has ended. So later attempts have lower tags.
        made: list[MPI.Comm] = []
        thread = threading.Thread(
            target=lambda: made.append(comm.Create_group(group, FIRST_TAG - attempt)), daemon=True
        )
        thread.start()
        try:
            part.wait_until(lambda: not thread.is_alive(), SETUP_SECONDS, sleep=thread.join)
            part._make(made[0], self.shared)
        except BaseException:
            part.letters = None  # it does not end, it was not made
            raise
        made[0].Free()
        return part

    @announces("empty")
    def empty(self, n: int, dtype=np.float32, common: bool = False) -> np.ndarray:
        """Allocate zeroed memory, 64-byte aligned, in a window that the node's ranks share.

        Collective. Every rank gets its own flat array, and an allreduce of corresponding arrays (or
        slices) needs no copies. If ranks share no memory, it is ordinary memory. It is freed when
        no rank has an array that refers to it.

        Args:
            n: number of elements; like `dtype` and `common` the same on all ranks.
            common: give all ranks of a node the same memory, for values that are equal on all of
                them. A rank that writes must ensure that no other rank reads at the same time;
                collectives do not check this.

        Raises:
            MemoryError: on all ranks, if the node has not enough memory.
        """
        return windows.empty(self, n, dtype, common)

    def slice_of(self, n: int, rank: int | None = None) -> tuple[int, int]:
        """Return [first, last), the slice of n elements that belongs to `rank` (default: this)."""
        return bounds(n, self.size, self.rank if rank is None else rank)

    def recover(self, seconds: float | None = 60.0) -> None:
        """Make the team usable again after a failure. Collective: every rank must call it.

        If a rank that has not failed calls it, that counts as a failure of this rank, so that the
        others don't wait for it in another call. Arrays of `empty` remain usable, with the values
        that the failed call left in them. `comm` is a new communicator afterwards. In notebook
        cells on a cluster's engines it is called automatically.

        Raises:
            DeadlineError: some ranks did not call it within `seconds` (None: no limit); the message
                names them. It may be called again.
            PeerError: a rank failed once more, or its process has ended.
        """
        if self.letters is None:
            raise self.failure or RuntimeError("this team was never made")
        if self.failure is None:
            self.abort(sys.exception() or TeamError("recover() was called"))
        recovery.recover(self, seconds)

    def regroup(self, seconds: float | None = 600.0) -> Team:
        """Return a new team of the ranks that are left after a failure. All of them must call it.

        Ranks whose process or program has ended are left out; the others keep their order. If no
        rank was lost, it is a team of all. This team can't be used any more, and neither can its
        windows. The new team's `mates` are {rank in this team: rank in the new one}.

        Raises:
            DeadlineError: some ranks did neither end nor call it within `seconds` (None: no limit).
        """
        if self.letters is None:
            raise self.failure or RuntimeError("this team was never made")
        if self.failure is None:
            self.abort(sys.exception() or TeamError("regroup() was called"))
        return regrouping.regroup(self, seconds)

    def close(self) -> None:
        """Free the communicators. Collective; the team can't be used afterwards."""
        if self.failure is None:
            self.barrier()
            mail, closed = self.letters, RuntimeError("this team was closed")
            # At once, before an interrupt: a team without letters tells nobody when it fails.
            self.failure, self.letters = closed, None
            try:
                mail.comm.Free()
            finally:
                self.comm.Free()
                self.forget()

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

    # Building blocks of collectives

    def peers(self, x: np.ndarray) -> list[np.ndarray] | None:
        """Return views of what corresponds to `x` on all ranks of the node; None outside windows.

        Read them only between barriers.
        """
        return self.window.peers(calls.vector(x)) if self.node else None

    def scratch(self, n: int, dtype: np.dtype) -> np.ndarray:
        """Return at least `n` elements of private memory, which is reused by later calls."""
        if dtype not in self._scratch or self._scratch[dtype].size < n:
            self._scratch[dtype] = window.aligned(n, dtype)
        return self._scratch[dtype]

    def _forget_machine(self) -> None:
        self.machine = replace(UNMEASURED, per_node=self.lanes.count)

    def _agree(self) -> None:
        self._forget_machine()  # some ranks may not have learned it before the failure
        # A call of `empty` may have succeeded on some of the ranks only.
        world = world_of(self.comm)
        told, failed = (world.letters.told, world.failure is not None) if world else (0, False)
        table = self.gather([self.window.made, self.letters.told, told, failed]).T.tolist()
        self.window.made = max(table[0])
        self.letters.settled |= enumerate(table[1])
        if world is not None:
            world.settle(self, table[2])
            if any(table[3]) and has_all_ranks(self.comm):
                world.recover_with(self)

    def edges(self, n: int) -> np.ndarray:
        """Return the edges of the slices of n elements: rank r's is [edges[r], edges[r + 1])."""
        if n not in self._edges:
            if len(self._edges) > 100:
                self._edges.clear()
            ends = [self.slice_of(n, rank)[1] for rank in range(self.size)]
            self._edges[n] = np.array([0, *ends], np.int64)
        return self._edges[n]

    def widened(self, flat: np.ndarray) -> np.ndarray:
        """Return `flat` itself, or for halves a copy in float32."""
        if not is_half(flat.dtype):
            return flat
        wide = np.empty(flat.size, np.float32)
        convert(wide, carried(flat))
        return wide
