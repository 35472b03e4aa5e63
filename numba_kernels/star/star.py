"""A star: one rank that serves all others, a vector each way, in the order in which they ask.

This is what a parameter server's data travels by. Rank 0 of a team is the hub, the others are its
leaves. A leaf asks and waits for its answer; the hub takes one request after the other:

    leaf:  star.out[:] = gradient                hub:  leaf = star.next(0.2)
           words = star.ask([7])                       if leaf is not None:
           weights[:] = star.into                          ... star.words(leaf), star.sent(leaf) ...
                                                           star.answer_vector(leaf)[:] = weights
                                                           star.answer(leaf, [8])

With each vector go HEAD numbers (float64), for whatever else the two have to tell each other.

On the hub's node both vectors lie in memory that leaf and hub share: a model's gradient may be
placed in `star.out` and its weights in `star.into`, and then nothing is copied at all; only a
doorbell goes over (doorbell.py). With `swap` weights come where the gradient was, and the two
change places. Leaves elsewhere send one message each way, head and vector in
one (messages.py). A team may have both.

A leaf that fails disturbs neither the hub nor other leaves: the hub learns of it by `lost()`. A hub
that fails raises PeerError on all leaves that wait for it, or ask later.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import numpy as np
from mpi4py import MPI

from ..allreduce import calls
from ..environment import local_ranks
from ..errors import TeamError
from ..shared import node_array, window
from . import memory_layout as layout
from . import messages
from .hub import Hub
from .leaf import Leaf
from .memory_layout import CONTROL, FIRST_BLOCK, HEAD

__all__ = ["HEAD", "Star"]

MOST = 2**33  # bytes of a vector: what MPI can count in one message, in words


class Star(Leaf, Hub):
    """Rank 0 of `team` serves the others. Making it is collective.

    Args:
        team: 2 ranks or more
        sent, received: elements of what a leaf sends, and of what the hub answers
        dtype: of both, one of those of a Team's collectives
        in_place: an answer comes in the memory of what was sent (`sent` and `received` are equal)
        kept: elements of memory on the hub that leaves of its node can see: see `keep`

    Attributes:
        out, into: on a leaf, [sent] and [received], zeroed, 64-byte aligned: what it sends, and
            what comes back; see `ask` for when they change places. On the hub it is memory that
            nobody else looks at.
        near: whether no message has to travel: on a leaf, for itself; on the hub, for all of them

    A team that fails takes its stars with it. After `team.recover()` make a new one: which requests
    of the old one were served, only its user can know.

    Raises:
        ValueError, TypeError: on a rank that asks for what can't be
        MismatchError: on the others then, and on all where they ask for different things
        MemoryError: on all ranks
    """

    def __init__(
        self,
        team,
        sent: int,
        received: int,
        dtype=np.float32,
        *,
        in_place: bool = False,
        kept: int = 0,
    ):
        self.team, self._comm = team, None
        self._agree(sent, received, dtype, in_place, kept)
        self.dtype, self.is_hub, self._in_place = np.dtype(dtype), team.rank == 0, bool(in_place)
        words = [CONTROL + HEAD + -(-n * self.dtype.itemsize // 8) for n in (sent, received)]
        second = FIRST_BLOCK + (0 if in_place else -(-words[0] // 16) * 16)  # apart: see kernels
        self._blocks = (FIRST_BLOCK, words[0], sent), (second, words[1], received)
        self._row = team.empty(second + words[1], np.int64)
        rows = team.peers(self._row) or [self._row]
        rows = dict(zip(team.node, rows, strict=True))
        comm = team._duplicate(team.comm)
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._generation = team.generation
        self.near = len(rows) == team.size if self.is_hub else 0 in rows
        (_, _, self.out), (_, _, self.into) = self._views(self._row)
        self._star = np.zeros(7, np.int64)
        self._alone = self._has_core()
        few = int(team._node[node_array.SPINS])
        self._star[layout.SPINS] = 20 * few if self._alone else min(few, 20)
        self._star[layout.PATIENCE] = team._node[node_array.PATIENCE]
        self._star[layout.MINE] = self._row.ctypes.data
        self._star[layout.HUB] = rows.get(0, self._row).ctypes.data
        self._memory = self._share(kept, near=0 in rows and self._alone) if kept else None
        if self.is_hub:
            self._be_hub(comm, rows)
        else:
            self._be_leaf(comm)
        self._comm = comm
        team.barrier()  # the hub is ready for messages, and every leaf has its row

    def close(self) -> None:
        """Give back what the star holds; on every rank that is left, when all are served."""
        if self._comm is not None:
            comm, failed = self._comm, self._let_go()
            # Who waits for a last answer that is under way gets it: these are some milliseconds.
            if not failed and messages.clear(1.0):
                comm.Free()

    def __del__(self):
        # At the end of a program modules may be gone already, and MPI ends by itself.
        if self._comm is not None and not sys.is_finalizing() and not MPI.Is_finalized():
            self._let_go()

    def _let_go(self) -> bool:
        """Wait for nothing any more; whether anybody has failed."""
        failed = self.team._failure is not None
        if self.is_hub:
            self._stop_help()
            failed = failed or bool(self._told)
            for leaf in self.leaves:
                self.drop(leaf)
        elif not self.near:
            self._abandon()
        self._comm = None
        return failed

    def _agree(self, sent, received, dtype, in_place, kept) -> None:
        """All ranks ask for the same, and it can be had; else every rank raises something."""
        team = self.team
        team.ready()
        try:
            kind = self._checked(sent, received, dtype, in_place, kept)
        except (TypeError, ValueError):
            if team.size > 1:
                team._gather([0] * 6, calls.encode("Star"))
            raise
        asked = [1, sent, received, calls.DTYPES.index(kind.name), bool(in_place), kept]
        table = team._gather(asked, calls.encode("Star", kind), sent)
        team._doing = _named(asked)
        for rank, theirs in enumerate(table.tolist()):
            if theirs != asked:
                raise team._mismatch(rank, _named(theirs) if theirs[0] else "a Star that can't be")

    def _checked(self, sent, received, dtype, in_place, kept) -> np.dtype:
        kind = np.dtype(dtype)
        if not calls.known(kind):
            raise TypeError(f"a star of {kind}; one of {', '.join(calls.DTYPES)} is needed")
        if self.team.size < 2:
            raise ValueError("a star of 1 rank has no leaves; 2 ranks or more are needed")
        for n in (sent, received, kept):
            if isinstance(n, bool) or not hasattr(n, "__index__"):
                raise TypeError(f"a vector of {n!r} elements; a whole number is needed")
            if not 0 <= n * kind.itemsize <= MOST:
                raise ValueError(f"a vector of {n} elements; 0 or more, at most 8 GiB, are needed")
        if in_place and sent != received:
            raise ValueError(f"{sent} are sent and {received} received: not in one place")
        return kind

    def _views(self, row: np.ndarray) -> list[tuple[np.ndarray, ...]]:
        """Of both blocks in a row: [CONTROL] int64, the words [HEAD] float64, and the vector."""
        found = []
        for start, words, n in self._blocks:
            control, head, vector = np.split(row[start : start + words], [CONTROL, CONTROL + HEAD])
            found.append((control, head.view(np.float64), vector.view(self.dtype)[:n]))
        return found

    def _has_core(self) -> bool:
        """Whether each rank of the node has a core to itself: then it looks some 2 ms for what it
        waits for before it sleeps. (To be woken takes 50 to 100 us, as long as to serve 200,000
        parameters; and a hub rests between requests, where ranks at a barrier do not.)
        """
        return self.team._node[node_array.SPINS] > 100 and local_ranks() <= (os.cpu_count() or 1)

    def _share(self, elements: int, near: bool) -> np.ndarray | None:
        """Memory of the hub's that leaves of its node see as well. Collective."""
        team, nbytes = self.team, window.row_bytes(elements + 64, self.dtype)
        made, name = -1, 0
        if self.is_hub and elements:
            with suppress(OSError, OverflowError):
                made, name = window.create(nbytes)
        try:
            call = calls.encode("Star", self.dtype)
            pid, descriptor, name, left = map(
                int, team._gather([os.getpid(), made, name, window.available()], call, elements)[0]
            )
            memory = None
            if descriptor >= 0 and nbytes <= left and near:
                memory = window.attach(pid, descriptor, name, nbytes)
            team._gather([0], call, elements)  # all have opened what the hub closes now
        finally:
            if made >= 0:
                os.close(made)
        return None if memory is None else memory.view(self.dtype)

    def _ready(self) -> None:
        """Raise what keeps this star from being used."""
        team = self.team
        if self._comm is None:
            raise RuntimeError("this star was closed")
        if team._failure is not None and team.generation == self._generation:
            raise team._failure
        if team.generation != self._generation:
            raise TeamError("this star's team has failed since it was made: make a new star")


def _named(asked) -> str:
    _, sent, received, kind, in_place, kept = asked
    more = ", in_place=True" * bool(in_place) + f", kept={kept}" * bool(kept)
    return f"Star({sent}, {received}, {calls.DTYPES[kind]}{more})"
