"""The board: a barrier in shared memory, where the ranks of a node also announce their calls.

Every rank writes only its own part of the board; its count and its calls share one cache line. To
arrive, a rank writes its call, then increments its count (with release order); it may go on when it
has seen all counts reach its own (with acquire order).

        rank 0:  write call, count = 7 ---.   .--- sees 7, 7, 7: goes on
        rank 1:  write call, count = 7 ----+-+---- sees 7, 7, 7: goes on
        rank 2:      ... count = 7 -------'   '--- sees 7, 7, 7: goes on

A rank may run ahead by one barrier, but not two, before the slowest rank has looked at the board.
So two alternating copies of the call are enough for all ranks to compare them.

Kernels that wait are *resumable*: they spin, then yield the core a few times, then sleep until they
are woken (futex.py), and return WAIT after `patience`. The caller handles signals and messages
about failures, and then calls the kernel again, which continues where it was.

A rank that is going to sleep announces it on the board, and a rank that arrives wakes it. Each
writes first and reads afterwards, with a fence in between, so at least one sees the other:

    arriving:  count = 7    | fence | if a rank is sleeping, wake it
    waiting:   sleeping = 1 | fence | if the count is still 6, sleep
"""

from ..jit.atomics import fence, load_acquire, relax, store_release
from ..jit.compile import compiled
from ..jit.futex import wait, wake
from ..jit.mpi_functions import Wtime
from ..jit.yielding import yielded
from ..spans import FLAG, began, ended
from .node_array import AT, PATIENCE, RANK, SPINS, WORDS, board_of

# Return values of resumable kernels; a negative number identifies a peer whose call did not match.
WAIT, READY = 0, 1

COUNT = 0  # number of barriers at which this rank has arrived
CALL = 1  # two alternating pairs (call, length and place)
SAMPLES, LOSS = 5, 6  # float64, written before an arrival and read after it
SLEEPING = 7
NUMBER, WAITING, LENGTH = 8, 9, 10  # the call that a rank is waiting in, once it waits long
RELEASED = 24  # the last count that the node's first rank released (in a cache line of its own)
HELD = 16  # for so many waits this rank does not yield (yielding.py)
YIELDS, YIELDING = 20, 1e-4  # yield at most 20 times, and for 0.1 ms, before sleeping
LENGTHS = 1 << 40  # a length and the place of its array in the window share one word


@compiled
def arrive(board, rank, call, length):
    """Announce this rank's call, then its arrival. `length` includes LENGTHS * place."""
    count = board[rank, COUNT] + 1
    turn = CALL + 2 * (count & 1)
    board[rank, turn] = call
    board[rank, turn + 1] = length
    publish(board, rank, COUNT, count)


@compiled
def publish(board, rank, word, count):
    """Write that word of this rank, after all that it has written before, and wake sleepers."""
    address = board.ctypes.data + 8 * (rank * WORDS + word)
    store_release(address, count)
    fence()
    for peer in range(board.shape[0]):
        if board[peer, SLEEPING] != 0:
            wake(address)
            break


@compiled
def all_arrived(board, rank, spins, patience):
    """Wait for every rank's count: READY, WAIT, or -1 - peer for a peer whose call differs."""
    ranks = board.shape[0]
    started = -1.0
    for peer in range(ranks):
        done, started = reached(board, rank, peer, COUNT, spins, patience, started)
        if done != READY:
            return done
    ended(FLAG)
    for peer in range(ranks):
        if not alike(board, rank, peer):
            return -1 - peer
    return READY


@compiled
def release(board, rank):
    """Let the ranks go on that wait in `released` for this rank, the node's first."""
    publish(board, rank, RELEASED, board[rank, COUNT])


@compiled
def released(board, rank, spins, patience):
    """Wait until the node's first rank releases this one: READY, WAIT or -1, as above."""
    done, _ = reached(board, rank, 0, RELEASED, spins, patience, -1.0)
    if done != READY:
        return done
    ended(FLAG)
    return READY if alike(board, rank, 0) else -1


@compiled
def reached(board, rank, peer, word, spins, patience, started):
    """Wait until that word of `peer` reaches this rank's count: (READY or WAIT, started).

    `started`: when this rank's wait began, -1 if it has not yet waited for long.
    """
    count = board[rank, COUNT]
    address = board.ctypes.data + 8 * (peer * WORDS + word)
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
        soon = tries < spins + YIELDS and now - started < YIELDING
        if soon and yielded(board[rank], HELD):
            continue
        board[rank, SLEEPING] = 1
        fence()
        seen = load_acquire(address)
        if seen < count:
            wait(address, seen, patience)
        board[rank, SLEEPING] = 0
        if Wtime() - started > 1e-6 * patience:
            return WAIT, started
    return READY, started


@compiled
def alike(board, rank, peer):
    """Whether the calls of both ranks at this rank's count are the same."""
    turn = CALL + 2 * (board[rank, COUNT] & 1)
    return board[peer, turn] == board[rank, turn] and board[peer, turn + 1] == board[rank, turn + 1]


@compiled
def meet(node, call, length):
    """A complete barrier: node[AT], which must be even, is two more after it. Resumable."""
    board, rank = board_of(node), node[RANK]
    if node[AT] % 2 == 0:
        arrive(board, rank, call, length)
        node[AT] += 1
    done = all_arrived(board, rank, node[SPINS], node[PATIENCE])
    if done == READY:
        node[AT] += 1
    return done
