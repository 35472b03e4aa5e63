"""The doorbell of a star: how leaves on the hub's node ask, and how the hub answers. star.py says
what it is for.

Leaf and hub share rows of memory. A row begins with what is written by its leaf (how it asks) and
by the hub (how it answers), in cache lines of their own; then come two blocks, a head and a vector
each. The hub's own row has the bell.

    leaf:  writes head and vector | ticket = TICKETS + 1 (at the hub) | REQUEST = ticket | RINGS + 1
    hub:   sees RINGS change | takes the smallest REQUEST that it has not served | works |
           writes head and vector | ANSWERED = ticket
    leaf:  sees ANSWERED = ticket

REQUEST and ANSWERED are written with release order and read with acquire order, so whoever sees
them sees head and vector. TICKETS and RINGS are added to in one atomic step each, as several leaves
do so at once; tickets give the order of arrival.

A leaf may be killed anywhere. Before REQUEST is written there is no request: half a vector is never
looked at, and a ticket that nobody shows is missed by nobody, since the hub takes the smallest one
that it sees and waits for none. After that the request is complete, and is served like any other.
Were it killed before it could ring, nobody would wait for the answer.

Who sleeps is never forgotten (see board.py for the same argument):

    leaf:  REQUEST = 7 | RINGS + 1 | fence | does the hub sleep? then wake it, at RINGS
    hub:   r = RINGS | I sleep | fence | are there requests? | sleep while RINGS = r

If the leaf's addition comes before the hub's reading of RINGS, the hub sees its request: it does
not sleep. If it comes later, the system call sees another RINGS than r and returns at once, or the
hub is asleep already: then it had said so before the leaf looked, by the two fences, and is woken.
ANSWERED, which the leaf sleeps at, changes in the same way.
"""

from __future__ import annotations

from ..jit.atomics import fence, fetch_add, load_acquire, relax, store_release
from ..jit.compile import compiled
from ..jit.futex import wait, wake
from ..jit.mpi_functions import Wtime, sched_yield
from ..shared.board import READY, WAIT, YIELDING, YIELDS
from ..spans import FLAG, began, ended
from .hub_messages import look_into
from .memory_layout import (
    ANSWERED,
    ARRIVED,
    AT,
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


@compiled
def ask(star):
    """Of a leaf: ring, then wait for the answer. Resumable: READY, WAIT or WORK."""
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
        if tries < star[SPINS] + YIELDS and now - started < YIELDING:
            sched_yield()
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
    """Of the hub: what it wrote into the row of a leaf is the answer to its request."""
    row = table[ROWS, leaf]
    store_release(row + 8 * ANSWERED, table[SERVED, leaf])
    fence()
    if load_acquire(row + 8 * SLEEPING) != 0:
        wake(row + 8 * ANSWERED)


@compiled
def earliest(table):
    """The leaf whose request came first, of those not served; 0 if there is none."""
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
    """Of the hub: the leaf whose turn it is; 0 if none came in so many microseconds, some 5000.

    `inbox`: None if no leaf sends messages.
    """
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
        if tries < star[SPINS] + YIELDS and now - started < YIELDING:
            sched_yield()
            continue
        nap = min(star[PATIENCE], int(microseconds))
        if inbox is not None:  # nobody wakes who sleeps when a message comes
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
    """The hub does something else before it waits on: a trace shall not take that for waiting."""
    ended(FLAG)
