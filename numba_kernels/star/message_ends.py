"""The two ends of a star over messages (messages.py): the hub's inbox, and a leaf's line."""

from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..jit.atomics import fetch_add
from ..jit.compile import compiled
from ..jit.mpi_functions import STATUS_BYTES, SUCCESS, Irecv, Isend, Test, Testall, Wtime
from ..jit.yielding import nap, yielded
from ..optimizers.serve import update_and_answer
from ..shared.board import READY, WAIT
from ..spans import MESSAGE, began, ended
from .memory_layout import CONTROL, HEAD, NO
from .messages import (
    ASK,
    COMM,
    DATATYPE,
    NO_REQUEST,
    PIECE,
    PIECE_WORDS,
    abandon,
    cancel,
    give_up,
    handles_of,
    pieces,
)

IN, TAKES, OUT, GIVES, SENT, SENDING, BROKEN = range(7)  # columns of `leaves`


class Inbox(NamedTuple):
    """The state of all leaves that send messages, in arrays for compiled code."""

    handles: np.ndarray  # (3,) HANDLE
    receives: np.ndarray  # (p,) HANDLE: receive of each leaf's next request
    sends: np.ndarray  # (p, pieces + 1) HANDLE: sends of each leaf's last answer
    leaves: np.ndarray  # (p, 7) int64: address and words of each of the two blocks (address 0: not
    # such a leaf); pieces of the answer sent so far; whether any send is in flight; whether MPI
    # reported an error
    status: np.ndarray  # (pieces + 1) MPI_Status as int32
    flag: np.ndarray  # (1,) int32


def make_inbox(comm: MPI.Comm, words: int) -> Inbox:
    handles, p, messages = handles_of(comm), comm.size, pieces(words) + 1
    return Inbox(
        handles,
        np.full(p, handles[NO_REQUEST]),
        np.full((p, messages), handles[NO_REQUEST]),
        np.zeros((p, 7), np.int64),
        np.zeros(messages * STATUS_BYTES // 4, np.int32),
        np.zeros(1, np.int32),
    )


@compiled
def receive(inbox, leaf):
    handles, leaves = inbox.handles, inbox.leaves
    place = inbox.receives.ctypes.data + leaf * handles.itemsize
    Irecv(leaves[leaf, IN], leaves[leaf, TAKES], handles[DATATYPE], leaf, ASK, handles[COMM], place)


@compiled
def send_piece(inbox, leaf, words):
    """Send the next piece of an answer, maybe an empty one; the vector has `words` in all."""
    handles, leaves = inbox.handles, inbox.leaves
    number = leaves[leaf, SENT]
    first = number * PIECE_WORDS
    start = leaves[leaf, OUT] + 8 * (CONTROL + HEAD + first)
    count = max(0, min(PIECE_WORDS, words - first))
    place = inbox.sends.ctypes.data + (leaf * inbox.sends.shape[1] + number) * handles.itemsize
    Isend(start, count, handles[DATATYPE], leaf, PIECE, handles[COMM], place)
    leaves[leaf, SENT], leaves[leaf, SENDING] = number + 1, 1


@compiled
def send(inbox, leaf, wanted, vector):
    """Send the answer to a leaf, after posting the receive for its next request."""
    handles, leaves, most = inbox.handles, inbox.leaves, inbox.sends.shape[1]
    if leaves[leaf, IN] != leaves[leaf, OUT]:
        receive(inbox, leaf)
    if wanted:
        words = leaves[leaf, GIVES] - CONTROL - HEAD if vector else 0
        while leaves[leaf, SENT] < most - 1:
            send_piece(inbox, leaf, words)
    place = inbox.sends.ctypes.data + (leaf * most + most - 1) * handles.itemsize
    Isend(leaves[leaf, OUT], CONTROL + HEAD, handles[DATATYPE], leaf, ASK, handles[COMM], place)
    leaves[leaf, SENT], leaves[leaf, SENDING] = 0, 1


@compiled
def stream(inbox, leaf, rule, weights, sent, slots, hyper, answer):
    """Serve a request, and send each piece of the answer when it is complete: READY, or NO."""
    leaves = inbox.leaves
    behind = 8 * (CONTROL + HEAD)
    at_home = sent.ctypes.data == leaves[leaf, IN] + behind
    if leaves[leaf, IN] == 0 or not at_home or answer.ctypes.data != leaves[leaf, OUT] + behind:
        return NO
    n, words = weights.size, leaves[leaf, GIVES] - CONTROL - HEAD
    whole = n * weights.itemsize > 8 * (words - 1)  # otherwise more words follow the last element
    part, squares = np.zeros((1, 3), np.int64), np.zeros((0, 2))
    step = PIECE_WORDS * 8 // weights.itemsize
    for start in range(0, n, step):
        part[0, 0], part[0, 1] = start, min(start + step, n)
        update_and_answer(rule, weights, sent, slots, part, hyper, squares, answer)
        if start + step <= n or whole:
            send_piece(inbox, leaf, words)
    return READY


@compiled
def look_into(inbox, arrived, tickets):
    """Check which requests have arrived, and give them tickets."""
    handles, receives, sends, leaves, status, flag = inbox
    size, most, nothing = handles.itemsize, sends.shape[1], handles[NO_REQUEST]
    for leaf in range(receives.size):
        if leaves[leaf, IN] == 0 or leaves[leaf, BROKEN] != 0:
            continue
        if leaves[leaf, SENDING] != 0:
            place = sends.ctypes.data + leaf * most * size
            if Testall(most, place, flag.ctypes.data, status.ctypes.data) != SUCCESS:
                leaves[leaf, BROKEN] = 1
                continue
            if flag[0] == 0:
                continue  # until the answer is sent, no new request may overwrite its block
            leaves[leaf, SENDING] = 0
            if leaves[leaf, IN] == leaves[leaf, OUT]:
                receive(inbox, leaf)
        if receives[leaf] != nothing:
            done = Test(receives.ctypes.data + leaf * size, flag.ctypes.data, status.ctypes.data)
            if done != SUCCESS:
                leaves[leaf, BROKEN] = 1
            elif flag[0] != 0:
                arrived[leaf] = fetch_add(tickets, 1) + 1


def drop(comm: MPI.Comm, inbox: Inbox, leaf: int, row: np.ndarray, dead: bool) -> None:
    """Stop serving a leaf; messages sent to it still arrive, unless it is `dead`."""
    dead = dead or bool(inbox.leaves[leaf, BROKEN])
    inbox.leaves[leaf] = 0
    if dead:
        abandon(inbox.sends[leaf], row)
        abandon(inbox.receives[leaf : leaf + 1], row)
        return
    for number in range(inbox.sends.shape[1]):
        give_up(comm, inbox.sends[leaf], number, row)
    cancel(comm, inbox.receives, leaf, row)


class Line(NamedTuple):
    """A leaf's connection to the hub, in arrays for compiled code."""

    handles: np.ndarray  # (3,) HANDLE
    requests: np.ndarray  # (2 + pieces,) HANDLE: MPI requests of the message sent, of the answer's
    # head, and of its pieces
    status: np.ndarray  # as many MPI_Status as int32
    numbers: np.ndarray  # (4,) int64: progress of a request; polls before it yields; whether the
    # answer is received in the memory of the vector sent; for how many polls it does not yield
    flag: np.ndarray  # (1,) int32
    patience: np.ndarray  # (1,) float64, seconds


def make_line(comm: MPI.Comm, words: int, in_place: bool, spins: int, patience: float) -> Line:
    handles, messages = handles_of(comm), 2 + pieces(words)
    return Line(
        handles,
        np.full(messages, handles[NO_REQUEST]),
        np.zeros(messages * STATUS_BYTES // 4, np.int32),
        np.array([0, spins, in_place, 0]),
        np.zeros(1, np.int32),
        np.array([patience]),
    )


@compiled
def ask(line, outgoing, incoming, wanted):
    """Send a request and receive its answer. Resumable; negative if MPI reported an error."""
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
        if tries > numbers[1] and not yielded(numbers, 3):
            nap(Wtime() - started)
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


def leave(comm: MPI.Comm, line: Line, dead: bool, *buffers) -> None:
    """Give up all messages that a leaf waits for; a `dead` hub will send nothing."""
    if dead:
        abandon(line.requests, *buffers)
        return
    give_up(comm, line.requests, 0, *buffers)
    for i in range(1, line.requests.size):
        cancel(comm, line.requests, i, *buffers)
