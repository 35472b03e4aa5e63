"""A star over messages, for leaves that don't share the hub's memory.

A request is one message with head and vector. The hub has one receive posted per such leaf, from
the moment it answers the leaf. A message gets its ticket, which gives the order of arrival, when it
is complete.

An answer is the vector in pieces, if the leaf wants one, followed by the head. The hub sends each
piece as soon as that part of the weights is updated, while it is still in the cache, and the leaf
receives it while the hub works on the next one. (If a rule does not use `serve.serve`, all pieces
are sent at the end. If the hub says that the vector is not needed, the pieces are empty.)

message_ends.py has the kernels of the two ends. A star has its own communicator, so
its messages can't be mistaken for a collective's data.
"""

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

_kept: list[tuple] = []  # requests no longer waited for, with the memory that MPI may still use
_abandoned: list[tuple] = []  # requests that must not even be tested


def pieces(words: int) -> int:
    """Return the number of messages for the vector of a block of `words`."""
    return -(-(words - CONTROL - HEAD) // PIECE_WORDS)


def handles_of(comm: MPI.Comm) -> np.ndarray:
    handles = np.zeros(3, mpi.HANDLE)
    nothing = mpi.handle(MPI.REQUEST_NULL)
    handles[:] = mpi.handle(comm), mpi.datatype(np.dtype("int64")), nothing
    return handles


def give_up(comm: MPI.Comm, handles: np.ndarray, place: int, *buffers) -> None:
    """Stop waiting for the request at a place of `handles`, but keep its buffers."""
    nothing = mpi.handle(MPI.REQUEST_NULL)
    if handles[place] != nothing:
        bits = 8 * handles.itemsize
        request = MPI.Request.fromhandle(int(handles[place]) & ((1 << bits) - 1))
        handles[place] = nothing
        _kept.append((request, comm, *buffers))


def abandon(handles: np.ndarray, *buffers) -> None:
    """Never touch these requests again: their peer is dead.

    MPICH 5 sometimes crashes when it cancels the receive of a message that a killed rank was
    sending.
    """
    _abandoned.append((handles.copy(), *buffers))
    handles[:] = mpi.handle(MPI.REQUEST_NULL)


def cancel(comm: MPI.Comm, handles: np.ndarray, place: int, *buffers) -> None:
    """Cancel the receive at a place of `handles`; its message may already be arriving."""
    give_up(comm, handles, place, *buffers)
    if _kept:
        with suppress(MPI.Exception):
            _kept[-1][0].Cancel()
        clear(0.01)


def clear(seconds: float) -> bool:
    """Drop completed requests; return whether all have completed within `seconds`."""
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


def send_bytes(comm: MPI.Comm, leaf: int, data: bytes, seconds: float) -> bool:
    """Send `data`; return whether MPI completed the send in time."""
    request, end = comm.Isend([data, MPI.BYTE], leaf, TELL), time.monotonic() + seconds
    while not request.Test():
        if time.monotonic() > end:
            _kept.append((request, comm, data))
            return False
        time.sleep(0.0005)
    return True


class News:
    """The bytes that the hub sends to a leaf with `tell`, once they have arrived."""

    def __init__(self, comm: MPI.Comm):
        self.comm, self.data, self._request = comm, b"", None

    def come(self) -> int:
        """Make progress; return READY or WAIT."""
        status = MPI.Status()
        if self._request is None and self.comm.Iprobe(0, TELL, status):
            self._buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._request = self.comm.Irecv([self._buffer, MPI.BYTE], 0, TELL)
        if self._request is None or not self._request.Test():
            return WAIT
        self.data = self._buffer.tobytes()
        return READY
