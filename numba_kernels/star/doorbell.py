"""Requests and answers of a star in shared memory, for leaves on the hub's node.

star.py explains what a star is for. Leaf and hub share rows of memory. A row begins with words
written by the leaf (for requests) and by the hub (for answers), in separate cache lines; then
follow two blocks, each with a head and a vector. The hub's own row has the counters TICKETS and
RINGS.

    leaf:  writes head and vector | ticket = TICKETS + 1 (at the hub) | REQUEST = ticket | RINGS + 1
    hub:   sees RINGS change | takes the smallest REQUEST that it has not served | works |
           writes head and vector | ANSWERED = ticket
    leaf:  sees ANSWERED = ticket

REQUEST and ANSWERED are written with release order and read with acquire order, so a rank that sees
the new value also sees head and vector. TICKETS and RINGS are incremented atomically, as several
leaves may do so at once; tickets give the order of arrival.

A leaf may be killed at any point. Before REQUEST is written there is no request: the hub never
reads half a vector, and it does not miss the lost ticket, since it takes the smallest ticket it
sees and waits for none. After that the request is complete and is served like any other. If the
leaf is killed before it increments RINGS, the hub may notice the request late, but no rank waits
for the answer.

No sleeping rank misses its wake-up (board.py has the same argument):

    leaf:  REQUEST = 7 | RINGS + 1 | fence | if the hub is sleeping, wake it, at RINGS
    hub:   r = RINGS | sleeping = 1 | fence | are there requests? | sleep while RINGS = r

If the leaf increments RINGS before the hub reads it, the hub sees the request and does not sleep.
If it does so later, either the system call sees that RINGS is not r and returns at once, or the hub
is asleep already. In that case the two fences ensure that the leaf sees sleeping = 1 and wakes the
hub. A leaf sleeps on ANSWERED in the same way.
"""

from ..jit.atomics import fence, fetch_add, load_acquire, relax, store_release
from ..jit.compile import compiled
from ..jit.futex import wait, wake
from ..jit.mpi_functions import Wtime
from ..jit.yielding import yielded
from ..shared.board import READY, WAIT, YIELDING, YIELDS
from ..spans import FLAG, began, ended
from .memory_layout import (
    ANSWERED,
    ARRIVED,
    AT,
    HELD,
    HELPED,
    HUB,
    HUB_SLEEPS,
    JOB,
    MINE,
    PATIENCE,
    REQUEST,
    RINGS,
    ROWS,
    SERVED,
    SLEEPING,
    SPINS,
    TICKET,
    TICKETS,
    WORK,
)  # fmt: skip
from .message_ends import look_into


@compiled
def ask(star):
    """On a leaf: send the request, then wait for the answer. Resumable: READY, WAIT or WORK."""
    row, hub = star[MINE], star[HUB]
    if star[AT] == 0:
        star[TICKET] = fetch_add(hub + 8 * TICKETS, 1) + 1
        store_release(row + 8 * REQUEST, star[TICKET])
        fetch_add(hub + 8 * RINGS, 1)
        fence()
        if load_acquire(hub + 8 * HUB_SLEEPS) != 0:
            wake(hub + 8 * RINGS)
        star[AT] = 1
    address = row + 8 * ANSWERED
    tries, started = 0, -1.0
    while load_acquire(address) != star[TICKET]:
        if load_acquire(row + 8 * JOB) == star[TICKET] and star[HELPED] != star[TICKET]:
            star[HELPED] = star[TICKET]
            ended(FLAG)
            return WORK
        tries += 1
        if tries == 1:
            began()
        if tries < star[SPINS]:
            relax()
            continue
        now = Wtime()
        if started < 0:
            started = now
        soon = tries < star[SPINS] + YIELDS and now - started < YIELDING
        if soon and yielded(star, HELD):
            continue
        store_release(row + 8 * SLEEPING, 1)
        fence()
        seen = load_acquire(address)
        if seen != star[TICKET]:
            wait(address, seen, star[PATIENCE])
        store_release(row + 8 * SLEEPING, 0)
        if Wtime() - started > 1e-6 * star[PATIENCE]:
            return WAIT
    ended(FLAG)
    return READY


@compiled
def answer(star, table, leaf):
    """On the hub: mark the block it has written in a leaf's row as the answer to its request."""
    row = table[ROWS, leaf]
    store_release(row + 8 * ANSWERED, table[SERVED, leaf])
    fence()
    if load_acquire(row + 8 * SLEEPING) != 0:
        wake(row + 8 * ANSWERED)


@compiled
def earliest(table):
    leaf, first = 0, 0
    for i in range(table.shape[1]):
        ticket = table[ARRIVED, i]
        if table[ROWS, i] != 0:
            ticket = load_acquire(table[ROWS, i] + 8 * REQUEST)
        if ticket > table[SERVED, i] and (leaf == 0 or ticket < first):
            leaf, first = i, ticket
    if leaf != 0:
        table[SERVED, leaf] = first
    return leaf


@compiled
def next_leaf(star, table, inbox, microseconds):
    """On the hub: wait at most `microseconds` for the next request; return its leaf, or 0."""
    hub = star[HUB]
    tries, started = 0, -1.0
    while True:
        seen = load_acquire(hub + 8 * RINGS)
        if inbox is not None:
            look_into(inbox, table[ARRIVED], hub + 8 * TICKETS)
        leaf = earliest(table)
        if leaf != 0:
            ended(FLAG)
            return leaf
        tries += 1
        if tries == 1:
            began()
        if tries < star[SPINS]:
            relax()
            continue
        now = Wtime()
        if started < 0:
            started = now
        waited = 1e6 * (now - started)
        if waited > microseconds:
            return 0
        soon = tries < star[SPINS] + YIELDS and now - started < YIELDING
        if soon and yielded(star, HELD):
            continue
        nap = min(star[PATIENCE], int(microseconds))
        if inbox is not None:  # a message does not wake a sleeping hub
            nap = min(1000, 20 + int(waited) // 10)
        store_release(hub + 8 * HUB_SLEEPS, 1)
        fence()
        leaf = earliest(table)
        if leaf == 0:
            wait(hub + 8 * RINGS, seen, nap)
        store_release(hub + 8 * HUB_SLEEPS, 0)
        if leaf != 0:
            ended(FLAG)
            return leaf


@compiled
def rest():
    """End the span of the hub's wait in a trace, as it does something else before it goes on."""
    ended(FLAG)
