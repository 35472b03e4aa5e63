"""A star: one rank serves all others, in the order of their requests, with a vector each way.

It is the communication layer of a parameter server. Rank 0 of a team is the hub, the others are its
leaves. A leaf sends a request and waits for the answer; the hub serves one request after another:

    leaf:  star.out[:] = gradient                hub:  leaf = star.next(0.2)
           words = star.ask([7])                       if leaf is not None:
           weights[:] = star.into                          ... star.head(leaf), star.sent(leaf) ...
                                                           star.answer_vector(leaf)[:] = weights
                                                           star.answer(leaf, [8])

Each vector comes with a head of HEAD numbers (float64) for other information.

On the hub's node both vectors lie in memory that leaf and hub share. A model's gradient can be
placed in `star.out` and its weights in `star.into`; then no data is copied, and only flags are set
(doorbell.py). With `swap` the weights are written where the gradient was, and the two vectors
change places. Leaves on other nodes use messages (messages.py). A team may have both kinds.

If a leaf fails, neither the hub nor the other leaves are affected; the hub learns of it from
`lost()`. If the hub fails, all leaves that wait for it, or send a request later, raise PeerError.
"""

import os
import sys
from contextlib import suppress

import numpy as np
from mpi4py import MPI

from ..allreduce import calls
from ..errors import TeamError
from ..launcher import local_ranks
from ..shared import window
from . import memory_layout as layout
from . import messages
from .hub import Hub
from .leaf import Leaf
from .memory_layout import CONTROL, FIRST_BLOCK, HEAD

__all__ = ["HEAD", "Star"]

MOST = 2**33  # bytes of a vector: MPI counts at most 2^31 - 1 words per message


class Star(Leaf, Hub):
    """A star in which rank 0 of `team` serves the others. Making it is collective.

    If the team fails, its stars can't be used any more. After `team.recover()` make a new one; only
    the caller can know which requests of the old one were served.

    Args:
        team: a Team of at least 2 ranks.
        sent, received: elements of the vector that a leaf sends, and of the hub's answer.
        dtype: dtype of both, one of those of a Team's collectives.
        in_place: the answer is written to the memory of the vector sent; needs `sent` ==
            `received`.
        kept: elements of the hub's memory that leaves on its node can see (see `keep`).

    Attributes:
        out: (sent,) zeroed, 64-byte aligned: on a leaf, the vector it sends. See `ask` for when
            `out` and `into` change places. On the hub, memory that no other rank uses.
        into: (received,) likewise: on a leaf, the vector of the answer.
        near: on a leaf, whether it shares the hub's memory and sends no messages; on the hub,
            whether all leaves do.
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
        # Blocks start at separate pairs of cache lines: see memory_layout.py.
        second = FIRST_BLOCK + (0 if in_place else -(-words[0] // 16) * 16)
        self._blocks = (FIRST_BLOCK, words[0], sent), (second, words[1], received)
        self._row = team.empty(second + words[1], np.int64)
        rows = team.peers(self._row) or [self._row]
        rows = dict(zip(team.node, rows, strict=True))
        comm = team.duplicate(team.comm)
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._generation = team.generation
        self.near = len(rows) == team.size if self.is_hub else 0 in rows
        (_, _, self.out), (_, _, self.into) = self._views(self._row)
        self._star = np.zeros(8, np.int64)
        few = team.spins
        # If each rank of the node has a core to itself, a rank polls for some 2 ms before it
        # sleeps. (Waking takes 50 to 100 us, as long as serving 200,000 parameters; and unlike
        # ranks at a barrier, a hub is idle between requests.)
        self._alone = few > 100 and local_ranks() <= (os.cpu_count() or 1)
        self._star[layout.SPINS] = 20 * few if self._alone else min(few, 20)
        self._star[layout.PATIENCE] = team.patience
        self._star[layout.MINE] = self._row.ctypes.data
        self._star[layout.HUB] = rows.get(0, self._row).ctypes.data
        self._memory = self._share(kept, near=0 in rows) if kept else None
        if self.is_hub:
            self._be_hub(comm, rows)
        else:
            self._be_leaf(comm)
        self._comm = comm
        team.barrier()  # the hub is ready for messages, and every leaf has its row

    def close(self) -> None:
        """Free the star's resources. Call it on every remaining rank when all are served."""
        if self._comm is not None:
            comm, failed = self._comm, self._let_go()
            # Let last answers that are in flight arrive, which takes some milliseconds.
            if not failed and messages.clear(1.0):
                comm.Free()

    def __del__(self):
        # At the end of a program modules may be gone already, and MPI is finalised anyway.
        if self._comm is not None and not sys.is_finalizing() and not MPI.Is_finalized():
            self._let_go()

    def _let_go(self) -> bool:
        """Stop all waiting and serving; return whether any rank has failed."""
        failed = self.team.failure is not None
        if self.is_hub:
            self._stop_help()
            failed = failed or bool(self._reported)
            for leaf in self.leaves:
                self.drop(leaf)
        elif not self.near:
            self._abandon()
        self._comm = None
        return failed

    def _agree(self, sent, received, dtype, in_place, kept) -> None:
        """Check that all ranks gave the same, valid arguments; otherwise every rank raises."""
        team = self.team
        team.ready()
        try:
            kind = self._checked(sent, received, dtype, in_place, kept)
        except (TypeError, ValueError):
            if team.size > 1:
                team.gather([0] * 6, calls.encode("Star"))
            raise
        asked = [1, sent, received, calls.DTYPES.index(kind.name), bool(in_place), kept]
        table = team.gather(asked, calls.encode("Star", kind), sent)
        team.doing = _named(asked)
        for rank, theirs in enumerate(table.tolist()):
            if theirs != asked:
                raise team.mismatch(rank, _named(theirs) if theirs[0] else "an invalid Star")

    def _checked(self, sent, received, dtype, in_place, kept) -> np.dtype:
        kind = np.dtype(dtype)
        if not calls.known(kind):
            raise TypeError(f"dtype of a Star must be one of {', '.join(calls.DTYPES)}, got {kind}")
        if self.team.size < 2:
            raise ValueError("a Star needs at least 2 ranks, got 1")
        for n in (sent, received, kept):
            if isinstance(n, bool) or not hasattr(n, "__index__"):
                raise TypeError(f"elements of a Star's vector must be a whole number, got {n!r}")
            if not 0 <= n * kind.itemsize <= MOST:
                raise ValueError(f"a Star's vector must have from 0 elements to 8 GiB, got {n}")
        if in_place and sent != received:
            raise ValueError(f"in_place needs sent == received, got {sent} and {received}")
        return kind

    def _views(self, row: np.ndarray) -> list[tuple[np.ndarray, ...]]:
        """Return (flags [CONTROL] int64, head [HEAD] float64, vector) for both blocks of a row."""
        found = []
        for start, words, n in self._blocks:
            control, head, vector = np.split(row[start : start + words], [CONTROL, CONTROL + HEAD])
            found.append((control, head.view(np.float64), vector.view(self.dtype)[:n]))
        return found

    def _share(self, elements: int, near: bool) -> np.ndarray | None:
        """Return memory of the hub that leaves on its node can see too. Collective."""
        team, nbytes = self.team, window.row_bytes(elements + 64, self.dtype)
        made, name = -1, 0
        if self.is_hub and elements:
            with suppress(OSError, OverflowError):
                made, name = window.create(nbytes)
        try:
            call = calls.encode("Star", self.dtype)
            pid, descriptor, name, left = map(
                int, team.gather([os.getpid(), made, name, window.available()], call, elements)[0]
            )
            memory = None
            if descriptor >= 0 and nbytes <= left and near:
                with suppress(OSError):
                    memory = window.attach(pid, descriptor, name, nbytes)
            team.gather([0], call, elements)  # all have opened the file that the hub closes now
        finally:
            if made >= 0:
                os.close(made)
        return None if memory is None else memory.view(self.dtype)

    def _ready(self) -> None:
        team = self.team
        if self._comm is None:
            raise RuntimeError("this star was closed")
        if team.failure is not None and team.generation == self._generation:
            raise team.failure
        if team.generation != self._generation:
            raise TeamError("this star's team has failed since it was made: make a new star")


def _named(asked) -> str:
    _, sent, received, kind, in_place, kept = asked
    more = ", in_place=True" * bool(in_place) + f", kept={kept}" * bool(kept)
    return f"Star({sent}, {received}, {calls.DTYPES[kind]}{more})"
