"""A leaf's part of a star over messages (messages.py)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..jit.compile import compiled
from ..jit.mpi_functions import STATUS_BYTES, SUCCESS, Irecv, Isend, Testall, Wtime, sched_yield
from ..shared.board import READY, WAIT
from ..spans import MESSAGE, began, ended
from . import messages as star_messages
from .memory_layout import CONTROL, HEAD
from .messages import (
    ASK,
    COMM,
    DATATYPE,
    NO_REQUEST,
    PIECE,
    PIECE_WORDS,
    cancel,
    give_up,
    handles_of,
    pieces,
)  # fmt: skip


class Line(NamedTuple):
    """A leaf's connection to the hub, in arrays for compiled code."""

    handles: np.ndarray  # (3,) HANDLE
    requests: np.ndarray  # (2 + pieces,) HANDLE: MPI requests of the message sent, of the answer's
    # head, and of its pieces
    status: np.ndarray  # as many MPI_Status as int32
    numbers: np.ndarray  # (3,) int64: progress of a request; polls before it yields; whether the
    # answer is received in the memory of the vector sent
    flag: np.ndarray  # (1,) int32
    patience: np.ndarray  # (1,) float64, seconds


def make_line(comm: MPI.Comm, words: int, in_place: bool, spins: int, patience: float) -> Line:
    handles, messages = handles_of(comm), 2 + pieces(words)
    return Line(
        handles,
        np.full(messages, handles[NO_REQUEST]),
        np.zeros(messages * STATUS_BYTES // 4, np.int32),
        np.array([0, spins, in_place]),
        np.zeros(1, np.int32),
        np.array([patience]),
    )


@compiled
def ask(line, outgoing, incoming, wanted):
    """Send a request and receive its answer into the block `incoming`. Resumable.

    `numbers[0]` must be 0 at the beginning. A negative result: MPI reported an error.
    """
    handles, requests, status, numbers, flag, patience = line
    count = requests.size if wanted else 2
    if numbers[0] == 0:
        if not numbers[2]:  # the receives first, so that MPI delivers straight to their place
            expect(line, incoming, count)
        Isend(
            outgoing.ctypes.data, outgoing.size, handles[DATATYPE], 0, ASK, handles[COMM],
            requests.ctypes.data,
        )  # fmt: skip
        numbers[0] = 1 if numbers[2] else 2
    tries, started = 0, Wtime()
    while True:
        now = count if numbers[0] == 2 else 1
        if Testall(now, requests.ctypes.data, flag.ctypes.data, status.ctypes.data) != SUCCESS:
            return -1
        if flag[0]:
            if numbers[0] == 2:
                break
            expect(line, incoming, count)  # in place: only now, as the send has completed
            numbers[0] = 2
            continue
        tries += 1
        if tries == 1:
            began()
        if tries > numbers[1]:
            sched_yield()
        if tries % 16 == 0 and Wtime() - started > patience[0]:
            return WAIT
    ended(MESSAGE)
    for i in range(requests.size):
        requests[i] = handles[NO_REQUEST]
    return READY


@compiled
def expect(line, incoming, count):
    handles, requests = line.handles, line.requests
    size = handles.itemsize
    address, head = incoming.ctypes.data, CONTROL + HEAD
    for i in range(1, count):
        start, words, tag = 0, head, ASK
        if i > 1:
            start, tag = head + (i - 2) * PIECE_WORDS, PIECE
            words = min(PIECE_WORDS, incoming.size - start)
        Irecv(
            address + 8 * start, words, handles[DATATYPE], 0, tag, handles[COMM],
            requests.ctypes.data + i * size,
        )  # fmt: skip


def abandon(comm: MPI.Comm, line: Line, dead: bool, *buffers) -> None:
    """Give up all messages that a leaf waits for; a `dead` hub will send nothing."""
    if dead:
        star_messages.abandon(line.requests, *buffers)
        return
    give_up(comm, line.requests, 0, *buffers)
    for i in range(1, line.requests.size):
        cancel(comm, line.requests, i, *buffers)
