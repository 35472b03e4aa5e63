"""A star over messages, for leaves that don't share the hub's memory.

A request is one message, head and vector in one. The hub has one receive posted for each such leaf,
from the moment it answers it; messages get their tickets, which tell the order of arrival, when
they are complete.

An answer is the head, and before it the vector in pieces, if the leaf wants one. The hub sends a
piece as soon as that part of the weights is updated, while it is still in the cache, and the leaf
takes it in while the hub is at the next one. (A rule that is not served by `served.serve` has all
pieces sent in the end. Where the hub says that the vector need not be sent, they are empty.)

hub_messages.py is the hub's part of it, leaf_messages.py a leaf's. Everything of a star travels on a
communicator of its own, so nothing is taken for a collective's data.
"""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
from mpi4py import MPI

from ..jit import mpi_functions as mpi
from ..shared.board import READY, WAIT
from .memory_layout import CONTROL, HEAD

COMM, DATATYPE, NO_REQUEST = range(3)  # in `handles`
ASK, PIECE, TELL = 1, 2, 3  # tags
PIECE_WORDS = 1 << 15  # of int64: 256 KiB

_kept: list[tuple] = []  # requests that nobody waits for, with all that MPI may still use
_abandoned: list[tuple] = []  # those that must not even be looked at


def pieces(words: int) -> int:
    """How many messages the vector of a block of so many words takes."""
    return -(-(words - CONTROL - HEAD) // PIECE_WORDS)


def handles_of(comm: MPI.Comm) -> np.ndarray:
    handles = np.zeros(3, mpi.HANDLE)
    nothing = mpi.handle(MPI.REQUEST_NULL)
    handles[:] = mpi.handle(comm), mpi.datatype(np.dtype("int64")), nothing
    return handles


def give_up(comm: MPI.Comm, handles: np.ndarray, place: int, *buffers) -> None:
    """Nobody waits any more for the request at a place of `handles`."""
    nothing = mpi.handle(MPI.REQUEST_NULL)
    if handles[place] != nothing:
        bits = 8 * handles.itemsize
        request = MPI.Request.fromhandle(int(handles[place]) & ((1 << bits) - 1))
        handles[place] = nothing
        _kept.append((request, comm, *buffers))


def abandon(handles: np.ndarray, *buffers) -> None:
    """Never touch these requests again: their peer is dead.

    MPICH 5 crashes now and then when it is asked to cancel the receive of a message that a process
    was killed in the middle of.
    """
    _abandoned.append((handles.copy(), *buffers))
    handles[:] = mpi.handle(MPI.REQUEST_NULL)


def cancel(comm: MPI.Comm, handles: np.ndarray, place: int, *buffers) -> None:
    """End the receive at a place of `handles`. (A send is never cancelled: somebody waits for it.)

    If its message has begun to come, its buffers are kept until that is over.
    """
    give_up(comm, handles, place, *buffers)
    if _kept:
        with suppress(MPI.Exception):
            _kept[-1][0].Cancel()
        clear(0.01)


def clear(seconds: float) -> bool:
    """Forget what MPI is done with; whether that is all, after so many seconds at most."""
    end = time.monotonic() + seconds
    while True:
        for each in list(_kept):
            with suppress(MPI.Exception):
                if not each[0].Test():
                    continue
            _kept.remove(each)
        if not _kept or time.monotonic() > end:
            return not _kept
        time.sleep(0.0005)


def tell(comm: MPI.Comm, leaf: int, data: bytes, seconds: float) -> bool:
    """Send `data`; whether MPI was done with it in time."""
    request, end = comm.Isend([data, MPI.BYTE], leaf, TELL), time.monotonic() + seconds
    while not request.Test():
        if time.monotonic() > end:
            _kept.append((request, comm, data))
            return False
        time.sleep(0.0005)
    return True


class News:
    """What a leaf is told, once it has come."""

    def __init__(self, comm: MPI.Comm):
        self.comm, self.data, self._request = comm, b"", None

    def come(self) -> int:
        """READY or WAIT."""
        status = MPI.Status()
        if self._request is None and self.comm.Iprobe(0, TELL, status):
            self._buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._request = self.comm.Irecv([self._buffer, MPI.BYTE], 0, TELL)
        if self._request is None or not self._request.Test():
            return WAIT
        self.data = self._buffer.tobytes()
        return READY
