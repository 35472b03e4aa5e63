"""The board: a barrier in shared memory, on which ranks of a node also say what they are doing.

Every rank owns a part of the board and is the only one to write it; its count and its calls share
one cache line. To arrive, a rank writes what it calls, then raises its count (with release order);
it has met the others once it has seen all their counts reach its own (with acquire order).

        rank 0:  write call, count = 7 ---.   .--- sees 7, 7, 7: on
        rank 1:  write call, count = 7 ----+-+---- sees 7, 7, 7: on
        rank 2:      ... count = 7 -------'   '--- sees 7, 7, 7: on

A rank that passed may run ahead by one barrier, not two, before the slowest has looked at the
board: so two copies of the call, used in turn, are enough for everyone to compare.

Waits are *resumable*: they spin, then offer the core to others a few times, then sleep until they
are woken (futex.py), and after `patience` return WAIT. The caller looks after signals and news of
failures, and calls again.

A rank that sleeps says so on the board, and whoever arrives wakes it. Both write first and look
afterwards, with a fence between, so that one of them sees the other:

    arriving:  count = 7 | fence | does somebody sleep? then wake
    waiting:   I sleep   | fence | is the count still 6? then sleep
"""

from __future__ import annotations

from ..jit.atomics import fence, load_acquire, relax, store_release
from ..jit.compile import compiled
from ..jit.futex import wait, wake
from ..jit.mpi_functions import Wtime, sched_yield
from ..spans import FLAG, began, ended
from .node_array import AT, PATIENCE, RANK, SPINS, WORDS, board_of

# What resumable kernels return; a negative number names the peer whose call did not match.
WAIT, READY = 0, 1

COUNT = 0  # how many barriers this rank has arrived at
CALL = 1  # two pairs (call, length and place), used in turn
SAMPLES, LOSS = 5, 6  # float64, written before an arrival and read after it
SLEEPING = 7
NUMBER, WAITING, LENGTH = 8, 9, 10  # what a rank waits in, of whatever kind, once it waits long
YIELDS, YIELDING = 20, 1e-4  # as often, and for as many seconds, the core is offered before sleep
LENGTHS = 1 << 40  # a length and the place of its array in the window share a word


@compiled
def arrive(board, rank, call, length):
    """Say what this rank calls, then that it is there. `length`: also LENGTHS * place."""
    count = board[rank, COUNT] + 1
    turn = CALL + 2 * (count & 1)
    board[rank, turn] = call
    board[rank, turn + 1] = length
    address = board.ctypes.data + 8 * (rank * WORDS + COUNT)
    store_release(address, count)
    fence()
    for peer in range(board.shape[0]):
        if board[peer, SLEEPING] != 0:
            wake(address)
            break


@compiled
def all_arrived(board, rank, spins, patience):
    """Wait until every rank's count has reached ours: READY, WAIT, or -1 - (rank that differs).

    `spins`: looks before it sleeps; `patience`: microseconds before WAIT.
    """
    ranks = board.shape[0]
    count = board[rank, COUNT]
    started = -1.0
    for peer in range(ranks):
        address = board.ctypes.data + 8 * (peer * WORDS + COUNT)
        tries = 0
        while load_acquire(address) < count:
            tries += 1
            if tries == 1:
                began()
            if tries < spins:
                relax()
                continue
            now = Wtime()
            if started < 0:
                started = now
            if tries < spins + YIELDS and now - started < YIELDING:
                sched_yield()
                continue
            board[rank, SLEEPING] = 1
            fence()
            seen = load_acquire(address)
            if seen < count:
                wait(address, seen, patience)
            board[rank, SLEEPING] = 0
            if Wtime() - started > 1e-6 * patience:
                return WAIT
    ended(FLAG)
    turn = CALL + 2 * (count & 1)
    for peer in range(ranks):
        if board[peer, turn] != board[rank, turn] or board[peer, turn + 1] != board[rank, turn + 1]:
            return -1 - peer
    return READY


@compiled
def meet(node, call, length):
    """A whole barrier. Resumable."""
    board = board_of(node)
    if node[AT] == 0:
        arrive(board, node[RANK], call, length)
        node[AT] = 1
    return all_arrived(board, node[RANK], node[SPINS], node[PATIENCE])
