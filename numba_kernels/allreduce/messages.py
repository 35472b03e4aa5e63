"""Point-to-point messages for the collectives: one resumable exchange, on MPI_Isend and MPI_Irecv.

Every collective over messages is a sequence of exchanges; `words[AT]` counts the completed ones.
An exchange that takes longer than `patience` returns WAIT with its requests still in flight. The
caller handles signals and messages about failures, then calls the collective again, which
continues with the exchange it was in.

The tag of a message is a hash of the call it belongs to (calls.py). A receive accepts no other tag:
a message of another call may be longer than the buffer, and Open MPI writes beyond a buffer's end;
or it may have another dtype, and MPICH ends a process that receives a part of an element. `foreign`
finds out that the peer made a different call, whose message the receive does not take.
"""

from collections.abc import Sequence
from itertools import repeat, starmap
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numba import carray

from ..jit import mpi_functions as mpi
from ..jit.compile import compiled
from ..jit.mpi_functions import (
    SUCCESS,
    Cancel,
    Iprobe,
    Irecv,
    Isend,
    Test,
    Test_cancelled,
    Testall,
    Wtime,
)
from ..jit.yielding import nap, yielded
from ..shared.board import READY, WAIT
from ..shared.node_array import pointer_to
from ..spans import MESSAGE, began, ended
from .calls import MARK

COMM, DATATYPE, OP, NO_REQUEST, SEND, RECEIVE = range(6)  # in `handles`
AT, POSTED, TAG, ANY_TAG, IN_PLACE, SPINS, TAG_WORD, HELD, ENDS = range(9)  # in `words`

NOT_ASKED, ASKED, HAS_ITS_MESSAGE = range(3)  # words[ENDS]: a receive that `foreign` cancels


class Link(NamedTuple):
    """The state of an exchange, in arrays that compiled code reads and writes."""

    handles: np.ndarray  # (6,) HANDLE
    words: np.ndarray  # (9,) int64
    ranks: np.ndarray  # (p,) int64: the ranks in `comm` of those that take part, in order
    status: np.ndarray  # three MPI_Status as int32: of the send, the receive, and a probe
    flag: np.ndarray  # (1,) int32
    patience: np.ndarray  # (1,) float64, seconds


class Route(NamedTuple):
    """The first arguments of a collective over messages: a link, and this rank's number on it."""

    link: Link
    rank: int  # this rank's number on the link
    ranks: int  # number of ranks on the link


def route(comm: MPI.Comm, ranks: Sequence[int], spins: int, patience: float) -> Route:
    """Return the route between `ranks` of `comm`, numbered from 0; this rank is one of them."""
    handles = np.zeros(6, mpi.HANDLE)
    handles[COMM] = mpi.handle(comm)
    handles[[NO_REQUEST, SEND, RECEIVE]] = mpi.handle(MPI.REQUEST_NULL)
    words = np.zeros(9, np.int64)
    words[[ANY_TAG, SPINS, IN_PLACE]] = MPI.ANY_TAG, spins, int(MPI.IN_PLACE)
    # Offset of the tag in the status of a probe. It is not a constant in compiled code, since each
    # MPI has its own layout, and cached code may be loaded with another MPI.
    words[TAG_WORD] = 2 * mpi.STATUS_BYTES // 4 + mpi.STATUS_TAG
    status = np.zeros(3 * mpi.STATUS_BYTES // 4, np.int32)
    flag = np.zeros(1, np.int32)
    link = Link(handles, words, np.array(ranks, np.int64), status, flag, np.array([patience]))
    return Route(link, ranks.index(comm.rank), len(ranks))


def addresses(route: Route) -> np.ndarray:
    """Return what `link_at` needs besides the handles: int64, with rank and ranks at the end.

    Passing an array to compiled code takes some 0.1 microseconds, and a Link has six.
    """
    link = route.link
    arrays = (link.words, link.ranks, link.status, link.flag, link.patience)
    sizes = [link.ranks.size, link.status.size]
    return np.array([*(a.ctypes.data for a in arrays), *sizes, route.rank, route.ranks], np.int64)


@compiled
def link_at(handles, wire):
    """Return (link, rank, ranks) of the route whose `addresses` are `wire`."""
    words = carray(pointer_to(wire[0], np.int64), (9,))
    ranks = carray(pointer_to(wire[1], np.int64), (wire[5],))
    status = carray(pointer_to(wire[2], np.int32), (wire[6],))
    flag = carray(pointer_to(wire[3], np.int32), (1,))
    patience = carray(pointer_to(wire[4], np.float64), (1,))
    return Link(handles, words, ranks, status, flag, patience), wire[7], wire[8]


@compiled
def post(link, outgoing, to, incoming, source):
    """Begin the exchange that `exchange`, called with the same arguments, waits for."""
    handles, words, ranks, _, _, _ = link
    size = handles.itemsize
    requests = handles.ctypes.data + SEND * size
    words[POSTED], words[ENDS] = 1, NOT_ASKED
    # The receive first, so that MPI delivers the message straight to its place.
    if source >= 0:
        Irecv(
            incoming.ctypes.data,
            incoming.size,
            handles[DATATYPE],
            ranks[source],
            words[TAG],
            handles[COMM],
            requests + size,
        )
    if to >= 0:
        Isend(
            outgoing.ctypes.data,
            outgoing.size,
            handles[DATATYPE],
            ranks[to],
            words[TAG],
            handles[COMM],
            requests,
        )


@compiled
def exchange(link, outgoing, to, incoming, source):
    """Send `outgoing` to number `to` while receiving `incoming` from number `source`. Resumable.

    A number of -1 means no send, or no receive. Returns READY, WAIT, or -1 - (rank of the source)
    if that rank made a different call.
    """
    handles, words, ranks, status, flag, patience = link
    requests = handles.ctypes.data + SEND * handles.itemsize
    if not words[POSTED]:
        post(link, outgoing, to, incoming, source)
    tries = 0
    started = Wtime()
    while True:
        if Testall(2, requests, flag.ctypes.data, status.ctypes.data) != SUCCESS:
            # Truncation error: the peer sent more, in a call with the same hash.
            return -1 - ranks[source] if source >= 0 else WAIT
        if flag[0]:
            break
        tries += 1
        if tries == 1:
            began()
        if tries > words[SPINS] and not yielded(words, HELD):
            nap(Wtime() - started)
        if tries % 16 == 0:
            if source >= 0 and foreign(link, source):
                return -1 - ranks[source]
            if Wtime() - started > patience[0]:
                return WAIT
    ended(MESSAGE)
    words[POSTED] = 0
    handles[SEND] = handles[RECEIVE] = handles[NO_REQUEST]
    if words[ENDS] == ASKED and cancelled(link):
        return -1 - ranks[source]
    return READY


@compiled
def foreign(link, source):
    """Return True, and end the receive, if number `source` sends something else.

    Messages from one rank are matched in the order in which they were sent. So if one has come that
    no receive accepts, then the one that is waited for has come before it, or will not come. MPI
    knows which of the two: it cancels no receive that has its message.
    """
    handles, words, ranks, status, flag, _ = link
    if handles[RECEIVE] == handles[NO_REQUEST] or words[ENDS] == HAS_ITS_MESSAGE:
        return False
    size = status.nbytes // 3
    request = handles.ctypes.data + RECEIVE * handles.itemsize
    if words[ENDS] == NOT_ASKED:
        probe = status.ctypes.data + 2 * size
        Iprobe(ranks[source], words[ANY_TAG], handles[COMM], flag.ctypes.data, probe)
        if not flag[0] or status[words[TAG_WORD]] == words[TAG]:
            return False
        words[ENDS] = ASKED
        Cancel(request)
    Test(request, flag.ctypes.data, status.ctypes.data + size)
    if not flag[0]:
        return False  # it ends later, one way or the other
    if cancelled(link):
        return True
    words[ENDS] = HAS_ITS_MESSAGE
    return False


@compiled
def cancelled(link):
    """Whether the receive that has ended was cancelled, as its status says."""
    status, flag = link.status, link.flag
    Test_cancelled(status.ctypes.data + status.nbytes // 3, flag.ctypes.data)
    return flag[0] != 0


class Abandoned:
    """An exchange, with its buffers, that a failed call left in flight."""

    def __init__(self, link: Link, buffers):
        self.requests, self.buffers = link.handles[[SEND, RECEIVE]].copy(), buffers
        self._flag, self._status = np.zeros(1, np.int32), np.zeros_like(link.status)
        self._open = self.requests[1] != link.handles[NO_REQUEST]  # a receive that may be cancelled
        link.handles[[SEND, RECEIVE]] = link.handles[NO_REQUEST]
        link.words[POSTED] = 0

    def over(self) -> bool:
        if not self._flag[0]:
            _test(self.requests, self._flag, self._status)
        return bool(self._flag[0])

    def give_up(self) -> None:
        """Cancel the receive, because nothing is sent any more that could arrive in it."""
        if self._open:
            _cancel(self.requests)
            self._open = False


class Flush:
    """Receives and discards all messages of a communicator after a failure. Collective.

    Messages between two ranks do not overtake each other. So when each rank has sent a last
    message, MARK, to every other one, and all ranks have received up to the marks, no message is in
    flight any more: none that a later receive could match, and none whose buffer MPI still needs.
    The receives that this rank left in flight are cancelled then.
    """

    def __init__(self, comm: MPI.Comm, abandoned: list[Abandoned]):
        self.comm, self.abandoned = comm, abandoned
        self.open = set(range(comm.size)) - {comm.rank}
        nothing = np.empty(0, np.uint8)
        self._marks = map(comm.Isend, repeat([nothing, MPI.BYTE]), list(self.open), repeat(MARK))
        self._requests: list[MPI.Request] = []  # each keeps its buffer

    def missing(self) -> set[int]:
        """Make progress; return the ranks whose messages have not arrived (this one: its own).

        An interrupt, which Python handles between calls of functions in C, ends this anywhere. So
        what MPI begins is kept by the call that begins it, and each mark is sent once.
        """
        self._requests.extend(self._marks)
        for each in [] if self.open else self.abandoned:
            each.give_up()
        for each in [each for each in self.abandoned if each.over()]:
            self.abandoned.remove(each)
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            if status.tag == MARK:
                self.open.discard(status.source)
            buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            envelope = [buffer, MPI.BYTE], status.source, status.tag
            self._requests.extend(starmap(self.comm.Irecv, [envelope]))
        self._requests = [request for request in self._requests if not request.Test()]
        return self.open or ({self.comm.rank} if self._requests or self.abandoned else set())


@compiled
def _test(handles, flag, status):
    Testall(2, handles.ctypes.data, flag.ctypes.data, status.ctypes.data)


@compiled
def _cancel(handles):
    Cancel(handles.ctypes.data + handles.itemsize)
