"""Team: ranks that communicate, and never hang (waiting.py says how)."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from ..allreduce import calls, gather, ring, shared_memory, staged, tree
from ..allreduce.dispatch import allreduce as _allreduce
from ..allreduce.elementwise import bounds, convert, op_code
from ..allreduce.machine import UNMEASURED
from ..errors import TeamError
from ..jit.halves import carried, is_half
from ..shared import board, window
from ..shared.board import READY
from ..shared.node_array import AT
from ..spans import announces
from . import recovery, windows
from .failure import abort_all
from .mailbox import Mailbox
from .waiting import PATIENCE, SETUP_SECONDS, Waiting
from .world import processes, world_of

__all__ = ["Team", "abort_all"]


class Team(Waiting):
    """The ranks of a communicator, with collectives on vectors of numbers.

    Vectors are of float32, float64, float16, bfloat16 (of ml_dtypes), int32 or int64.

    Args:
        comm: any mpi4py intracommunicator; it is duplicated. Making a team is collective.
        shared: use memory shared within the node. False (or NUMBA_KERNELS_WINDOW=0) sends messages
            even between ranks of one node. (NUMBA_KERNELS_NODE=2 takes every two ranks for a node
            of their own, to try out several nodes on one machine.)
        deadline: seconds after which a wait raises DeadlineError; None waits as long as it takes
            (a rank may be computing). A wait of 10 s, or NUMBA_KERNELS_STALL, is reported.

    Attributes:
        rank, size: this rank's number and how many there are
        comm: this team's own communicator
        node: the ranks that share memory with this one, itself included, in order
        nodes: the same of every node
        machine: latency and bandwidths that "auto" goes by (allreduce/costs.py)
    """

    @announces("Team")
    def __init__(
        self,
        comm: MPI.Comm = MPI.COMM_WORLD,
        *,
        shared: bool = True,
        deadline: float | None = None,
    ):
        if not isinstance(comm, MPI.Comm) or comm == MPI.COMM_NULL:
            raise TypeError(f"a Team is made of an mpi4py communicator, not {comm!r}")
        super().__init__(comm.rank, comm.size, deadline)
        world = self._within = world_of(comm)
        if world is not None:
            world.ready()
            comm = world.comm if comm == MPI.COMM_WORLD else comm
        self.comm = self._duplicate(comm)
        self._mailbox = Mailbox(self._duplicate(comm))
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._processes = processes(self)
        self._scratch: dict[np.dtype, np.ndarray] = {}
        self._edges: dict[int, np.ndarray] = {}
        self.shared = shared and os.environ.get("NUMBA_KERNELS_WINDOW", "1") != "0"
        windows.find_node(self, self.shared, PATIENCE)
        self.machine = replace(UNMEASURED, per_node=self.lanes.count)
        self._within = None

    # What users call

    @announces("allreduce")
    def allreduce(self, x: np.ndarray, op: str = "sum", algorithm: str = "auto") -> np.ndarray:
        """Reduce `x` over all ranks, in place; see `numba_kernels.allreduce`."""
        return _allreduce(self, x, op, algorithm)

    @announces("reduce_scatter")
    def reduce_scatter(self, x: np.ndarray, op: str = "sum") -> np.ndarray:
        """Reduce `x` over all ranks; returns the view of `x` that is this rank's slice of it.

        Slices are those of `self.slice_of`; the rest of `x` is scratch afterwards.
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
                incoming = self.scratch(flat.size // self.size + 64, wide.dtype)
                arguments = (wide, incoming, number, divisor)
                self.by_messages(call, flat.size, wide.dtype, ring.reduce_scatter, arguments)
                if wide is not flat:
                    convert(carried(flat[first:last]), wide[first:last])
        return flat[first:last]

    @announces("allgather")
    def allgather(self, x: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """Every rank's flat `x`, as rows of an array of shape (size, n).

        Where lengths differ between ranks: a list of the arrays, in the order of ranks.
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
            arguments = (flat, edges, 0)
            self.by_messages(call, flat.size, flat.dtype, ring.allgather, arguments)

    @announces("alltoall")
    def alltoall(self, x: np.ndarray) -> np.ndarray:
        """Block r of `x`, shape (size, ...), to rank r; returns the blocks that came, by rank.

        Raises ValueError where the first dimension is not the number of ranks.
        """
        flat = calls.vector(x)
        if x.ndim == 0 or x.shape[0] != self.size:
            raise ValueError(f"x has shape {x.shape}; {self.size} blocks, one a rank, are needed")
        out = np.empty_like(x)
        if self.size == 1:
            out[:] = x
            return out
        call, block = calls.encode("alltoall", flat.dtype), flat.size // self.size
        edges = np.arange(self.size + 1) * block
        sent, received = carried(flat), carried(out.reshape(-1))
        if self.single_node:
            self.on_node(gather.alltoall, call, sent, received, edges)
        else:
            self.by_messages(call, flat.size, sent.dtype, gather.pairwise, (sent, received, edges))
        return out

    @announces("broadcast")
    def broadcast(self, x: np.ndarray, root: int = 0) -> np.ndarray:
        """Make `x` on every rank what it is on rank `root`, in place; returns `x`."""
        flat = calls.vector(x)
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} is not a rank of this team of {self.size}")
        if self.size > 1:
            call, flat = calls.encode("broadcast", flat.dtype, root=root), carried(flat)
            if self.single_node:  # as if x was gathered from slices, of which the root has all
                edges = np.where(np.arange(self.size + 1) > root, flat.size, 0)
                self.on_node(gather.allgather, call, flat, edges)
            else:
                self.by_messages(call, flat.size, flat.dtype, tree.down, (flat, root, 0))
        return x

    @announces("barrier")
    def barrier(self) -> None:
        """Return when every rank has called this."""
        if self.size == 1:
            return
        call = calls.encode("barrier")
        if self.single_node:
            self.ready()
            self._node[AT] = 0
            self._count += 1
            done = board.meet(self._node, call, 0)
            if done != READY:
                self._wait(call, 0, done, board.meet, (self._node, call, 0))
        else:
            nothing = np.zeros(1, np.float32)
            arguments = (nothing, self.scratch(1, np.dtype("float32")), 0, 1)
            self.by_messages(call, 0, nothing.dtype, tree.allreduce, arguments)

    @announces("split")
    def split(self, color: int, key: int = 0) -> Team:
        """The team of all ranks that gave the same `color`, ordered by `key`, then by rank."""
        self.ready()
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

    @announces("empty")
    def empty(self, n: int, dtype=np.float32, common: bool = False) -> np.ndarray:
        """Zeroed memory for `n` elements, 64-byte aligned, in a window the node's ranks share.

        Collective: all ranks ask for the same n and dtype. Every rank gets its own array; an
        allreduce of corresponding arrays (or slices) copies nothing. Where ranks share no memory
        it is ordinary memory. It is freed when no array looks at it any more, on all ranks.

        `common`: one and the same memory for all ranks of a node, for what they would hold p equal
        copies of. Who writes sees to it that nobody reads meanwhile; collectives don't.

        Raises MemoryError on all ranks when the node's memory does not suffice.
        """
        return windows.empty(self, n, dtype, common)

    def slice_of(self, n: int, rank: int | None = None) -> tuple[int, int]:
        """[first, last) of n elements that are `rank`'s share (default: this rank's)."""
        return bounds(n, self.size, self.rank if rank is None else rank)

    def recover(self, seconds: float | None = 60.0) -> None:
        """Make the team usable again after a failure. Collective: every rank calls it.

        A rank that has not failed so far fails by this: the others learn that it gave up its call.
        Arrays of `empty` stay what they are, with whatever a call that failed left in them. `comm`
        is a new communicator afterwards. In cells of a cluster's engines nobody need call it.

        Args:
            seconds: that ranks may take to all come here; None waits as long as it takes

        Raises:
            DeadlineError: they did not; it says which are missing. It may be called again.
            PeerError: a rank failed once more, or its process has ended.
        """
        if self._mailbox is None:
            raise self._failure or RuntimeError("this team was never made")
        if self._failure is None:
            self.abort(sys.exception() or TeamError("recover() was called"))
        recovery.recover(self, seconds)

    def close(self) -> None:
        """Give the communicators back. Collective; the team can't be used afterwards."""
        if self._failure is None:
            self.barrier()
            self._failure = RuntimeError("this team was closed")
            self._mailbox.comm.Free()
            self._mailbox = None
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

    def _agree(self) -> None:
        # A call of `empty` may have succeeded on some ranks only.
        self._window.made = int(self._gather([self._window.made]).max())

    def edges(self, n: int) -> np.ndarray:
        """Where the slices of n elements begin and end: [edges[r], edges[r + 1]) is rank r's."""
        if n not in self._edges:
            if len(self._edges) > 100:
                self._edges.clear()
            ends = [self.slice_of(n, rank)[1] for rank in range(self.size)]
            self._edges[n] = np.array([0, *ends], np.int64)
        return self._edges[n]

    def widened(self, flat: np.ndarray) -> np.ndarray:
        """`flat` itself, or for halves a copy of it in float32."""
        if not is_half(flat.dtype):
            return flat
        wide = np.empty(flat.size, np.float32)
        convert(wide, carried(flat))
        return wide
