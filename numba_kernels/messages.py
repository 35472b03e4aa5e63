"""Point-to-point messages for the collectives: one resumable exchange, on MPI_Isend and MPI_Irecv.

Every collective over messages is a sequence of exchanges; `words[AT]` counts those that are done.
An exchange that takes longer than `patience` returns WAIT with its requests still in flight; the
caller looks after signals and news of failures and calls the collective again, which comes straight
back to the exchange it was in.

The tag of a message is a hash of the call it belongs to (calls.py). A receive takes any tag from
its peer and then compares: another tag, or more bytes than fit, means that the peer called
something else, where a receive of one tag would wait for ever.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from . import mpi
from .board import READY, WAIT
from .compile import compiled
from .mpi import SUCCESS, Cancel, Irecv, Isend, Request_free, Testall, Wtime, sched_yield

COMM, DATATYPE, NO_REQUEST, SEND, RECEIVE = range(5)  # in `handles`
AT, POSTED, TAG, ANY_TAG, SPINS = range(5)  # in `words`
TAG_WORD = mpi.STATUS_BYTES // 4 + mpi.STATUS_TAG  # of the second of two statuses


class Link(NamedTuple):
    """What an exchange needs to know, in arrays that compiled code reads and writes."""

    handles: np.ndarray  # (5,) HANDLE
    words: np.ndarray  # (5,) int64
    status: np.ndarray  # two MPI_Status as int32
    flag: np.ndarray  # (1,) int32
    patience: np.ndarray  # (1,) float64, seconds


def link(comm: MPI.Comm, spins: int, patience: float) -> Link:
    handles = np.zeros(5, mpi.HANDLE)
    handles[COMM] = mpi.handle(comm)
    handles[[NO_REQUEST, SEND, RECEIVE]] = mpi.handle(MPI.REQUEST_NULL)
    words = np.zeros(5, np.int64)
    words[ANY_TAG], words[SPINS] = MPI.ANY_TAG, spins
    status = np.zeros(2 * mpi.STATUS_BYTES // 4, np.int32)
    return Link(handles, words, status, np.zeros(1, np.int32), np.array([patience]))


@compiled
def exchange(link, outgoing, to, incoming, source):
    """Send `outgoing` to rank `to` while receiving `incoming` from `source`; -1: neither.

    READY when both are done, WAIT when not yet, -1 - source when the peer called something else.
    """
    handles, words, status, flag, patience = link
    size = handles.itemsize
    requests = handles.ctypes.data + SEND * size
    if not words[POSTED]:
        words[POSTED] = 1
        # The receive first: a message that is waited for goes straight to its place.
        if source >= 0:
            Irecv(
                incoming.ctypes.data,
                incoming.size,
                handles[DATATYPE],
                source,
                words[ANY_TAG],
                handles[COMM],
                requests + size,
            )
        if to >= 0:
            Isend(
                outgoing.ctypes.data,
                outgoing.size,
                handles[DATATYPE],
                to,
                words[TAG],
                handles[COMM],
                requests,
            )
    tries = 0
    started = Wtime()
    while True:
        if Testall(2, requests, flag.ctypes.data, status.ctypes.data) != SUCCESS:
            return -1 - source  # truncated: the peer sent more than this call can take
        if flag[0]:
            break
        tries += 1
        if tries > words[SPINS]:
            sched_yield()
        if Wtime() - started > patience[0]:
            return WAIT
    words[POSTED] = 0
    handles[SEND] = handles[RECEIVE] = handles[NO_REQUEST]
    if source >= 0 and status[TAG_WORD] != words[TAG]:
        return -1 - source
    return READY


def cancel(link: Link) -> None:
    """Give up the exchange in flight, if any. MPI may still write into its buffers: keep them."""
    for which in (SEND, RECEIVE):
        if link.handles[which] != link.handles[NO_REQUEST]:
            _cancel(link.handles, which)
    link.words[POSTED] = 0


@compiled
def _cancel(handles, which):
    address = handles.ctypes.data + which * handles.itemsize
    Cancel(address)
    Request_free(address)
