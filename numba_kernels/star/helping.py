"""A leaf helps the hub to serve its request, since its core is idle while it waits for the answer.

Updating weights by a gradient and copying them into the answer is a pass over memory, limited by
the speed of one core. A leaf that shares the hub's memory takes part in serving its own request.
Both take chunks until none is left: the hub from the front, and the leaf from the back, as it wrote
that end of its gradient last and still has it in its cache:

    hub:   describes the job | JOB = ticket | takes chunks 0 1 2 ... | waits for DONE
    leaf:             sees JOB = ticket | takes chunks 40 39 38 ... | DONE + 1 after each

TAKEN counts the chunks taken and is incremented atomically, so no chunk is taken twice. The result
is the same, bit for bit, however the chunks are divided, as the rule works on each element
separately. The hub sees what the leaf wrote once it has seen DONE; the leaf sees what the hub wrote
once it has seen ANSWERED.

If the leaf's core is busy, the hub takes all chunks, or waits for the leaf's last one. If a leaf is
killed or stopped in the middle of a chunk, the hub continues without it: some of that chunk's
weights miss this update, or get it late.
"""

import numpy as np

from ..jit.atomics import fence, fetch_add, load_acquire, relax, store_release
from ..jit.compile import compiled
from ..jit.copying import copy
from ..jit.futex import wake
from ..jit.mpi_functions import Wtime
from ..jit.yielding import nap, yielded
from ..optimizers.serve import update_and_answer
from ..shared.board import READY, WAIT
from ..shared.node_array import elements_at
from .doorbell import ask as star_ask
from .memory_layout import ANSWERED, AT, HELD, JOB, MINE, NO, ROWS, SERVED, SLEEPING, WORK

# Words of a leaf's row, in addition to those of memory_layout.py.
TAKEN, DONE = 8, 9  # written by both
LENGTH, RULE, WEIGHTS, SLOTS, COUNT = 18, 19, 20, 21, 22  # written by the hub, before JOB
HYPER, NUMBERS = 24, 8  # float64
LEFT = MINE  # in the hub's array: chunks that the leaf has taken
CHUNK = 16384  # elements
LEAST = 4 * CHUNK  # elements from which help is worth its cost
GIVE_UP = 1.0  # seconds that the hub waits for the chunks of a leaf that was stopped, and
STARVED = 30.0  # of one that runs


@compiled
def ask(star, memory, sent, answer):
    """On a leaf: send the request, help to serve it, and wait. Resumable: READY or WAIT."""
    done = star_ask(star)
    if done == WORK:
        work(star, memory, sent, answer)
        done = star_ask(star)
    return done


@compiled
def work(star, memory, sent, answer):
    """On a leaf: process chunks of its job until none is left."""
    row = star[MINE]
    words = elements_at(row, star, HYPER + NUMBERS)
    n, rule, count = words[LENGTH], words[RULE], words[COUNT]
    hyper = words[HYPER:].view(np.float64)
    weights = memory[words[WEIGHTS] : words[WEIGHTS] + n]
    slots = memory[words[SLOTS] : words[SLOTS] + count * n].reshape((count, n))
    chunks, mine = (n + CHUNK - 1) // CHUNK, 0
    pieces, squares = np.zeros((1, 3), np.int64), np.zeros((0, 2))
    while fetch_add(row + 8 * TAKEN, 1) < chunks:
        pieces[0, 0] = (chunks - 1 - mine) * CHUNK
        pieces[0, 1] = min(pieces[0, 0] + CHUNK, n)
        update_and_answer(rule, weights, sent, slots, pieces, hyper, squares, answer)
        mine += 1
        store_release(row + 8 * DONE, mine)


@compiled
def together(star, table, leaf, starts, memory, rule, weights, sent, slots, hyper, answer):
    """On the hub: serve a leaf's request with its help. Resumable: READY, WAIT or NO.

    `star[AT]` is 0 at the beginning, and 1 when only chunks of the leaf are missing; `star[LEFT]`
    is their number. `starts`: where in a row the two vectors begin, in bytes.
    """
    row, n = table[ROWS, leaf], weights.size
    if star[AT] == 0:
        w, s = offset(weights, memory), offset(slots, memory)
        at_home = sent.ctypes.data == row + starts[0] and answer.ctypes.data == row + starts[1]
        if row == 0 or w < 0 or s < 0 or not at_home or hyper.size > NUMBERS or n < LEAST:
            return NO
        words = elements_at(row, star, HYPER + NUMBERS)
        words[TAKEN] = words[DONE] = 0
        words[LENGTH], words[RULE], words[COUNT] = n, rule, slots.shape[0]
        words[WEIGHTS], words[SLOTS] = w, s
        copy(words[HYPER : HYPER + hyper.size].view(np.float64), hyper)
        store_release(row + 8 * JOB, table[SERVED, leaf])
        fence()
        if load_acquire(row + 8 * SLEEPING) != 0:
            wake(row + 8 * ANSWERED)
        chunks, mine = (n + CHUNK - 1) // CHUNK, 0
        pieces, squares = np.zeros((1, 3), np.int64), np.zeros((0, 2))
        while fetch_add(row + 8 * TAKEN, 1) < chunks:
            pieces[0, 0], pieces[0, 1] = mine * CHUNK, min(mine * CHUNK + CHUNK, n)
            update_and_answer(rule, weights, sent, slots, pieces, hyper, squares, answer)
            mine += 1
        star[AT], star[LEFT] = 1, chunks - mine
    tries, started = 0, 0.0
    while load_acquire(row + 8 * DONE) < star[LEFT]:
        tries += 1
        if tries < 1000:
            relax()
            continue
        now = Wtime()
        if started == 0:
            started = now
        if now - started > 0.005:
            return WAIT
        if not yielded(star, HELD):
            nap(now - started)
    return READY


@compiled
def offset(x, memory):
    """Return the elements from the beginning of `memory` to `x`; -1 if x does not lie in it."""
    size = x.size
    if size == 0:
        return 0
    offset = x.ctypes.data - memory.ctypes.data
    inside = offset >= 0 and offset + size * x.itemsize <= memory.size * memory.itemsize
    return offset // x.itemsize if inside else -1
