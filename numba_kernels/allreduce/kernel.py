"""The one kernel of all algorithms over messages: it carries out the steps of this rank.

`table` turns the steps of an algorithm (steps.py) into rows of integers, once per length of the
vector, and `follow` has a team go through them. The kernel is resumable: words[AT] counts the
exchanges that are done.
"""

from functools import lru_cache

import numpy as np

from ..jit.compile import compiled
from ..shared.board import READY
from .elementwise import bounds, combine, divide
from .messages import AT, exchange
from .steps import COPIES, ENDS

# Columns of a table: elements [FIRST, LAST) are sent to TO, and [START, END) received from SOURCE.
TO, FIRST, LAST, SOURCE, START, END, DOES = range(7)
NOTHING = np.zeros((0, 7), np.int64)


@lru_cache(maxsize=1000)
def table(steps, rank: int, ranks: int, n: int, edges=None, more: tuple = ()) -> np.ndarray:
    """Return the table, (exchanges, 7) int64, of `steps(rank, ranks, *more)` for n elements.

    `edges`: (of the vector that is sent, of the one that is received), where chunks have lengths of
    their own: chunk i is [edges[i], edges[i + 1]). An empty chunk is not sent then.
    """

    def place(rank, chunks, first, last, edges):
        if rank < 0:
            return -1, 0, 0
        if edges is None:
            return rank, bounds(n, chunks, first)[0], bounds(n, chunks, last - 1)[1]
        return rank if edges[last] > edges[first] else -1, edges[first], edges[last]

    of_sent, of_received = edges or (None, None)
    if hasattr(steps, "py_func"):
        raise ValueError(
            "an algorithm is a function steps(rank, ranks) that yields steps, not a compiled kernel"
        )
    rows = []
    for step in steps(rank, ranks, *more):
        for other, (first, last) in ((step.to, step.sent), (step.source, step.received)):
            chunks = step.chunks if edges is None else last
            if other >= ranks or (other >= 0 and not 0 <= first <= last <= chunks):
                raise ValueError(f"{step} does not fit {ranks} ranks and {step.chunks} chunks")
        sent = place(step.to, step.chunks, *step.sent, of_sent)
        received = place(step.source, step.chunks, *step.received, of_received)
        rows.append((*sent, *received, step.does))
    kept = [row for row in rows if row[TO] >= 0 or row[SOURCE] >= 0]
    return np.array(kept, np.int64).reshape(-1, 7)


def follow(team, call: int, steps, x, op: int, divisor: int, way=None, length=None) -> None:
    """Reduce the flat `x` of all ranks, or of those of the route `way`, by the steps of each."""
    _, rank, ranks = way or team.routes[0]
    rows, incoming = table(steps, rank, ranks, x.size), team.scratch(x.size, x.dtype)
    arguments = (x, x, incoming, op, divisor, rows)
    n = x.size if length is None else length
    team.by_messages(call, n, x.dtype, carry_out, arguments, way)


def move(team, call: int, steps, x, received, edges=None, more=(), length=None, way=None) -> None:
    """Send parts of the flat `x`, and receive them in `received`, by the steps of each rank.

    The ranks are all, or those of the route `way`.
    """
    _, rank, ranks = way or team.routes[0]
    rows = table(steps, rank, ranks, x.size, edges, more)
    arguments = (x, received, received, None, 1, rows)
    n = x.size if length is None else length
    team.by_messages(call, n, x.dtype, carry_out, arguments, way)


@compiled
def carry_out(link, rank, ranks, x, received, incoming, op, divisor, rows):
    """Go through `rows`. What is added arrives in `incoming` first. Resumable.

    If `op` is None, nothing is added. (That is decided when it is compiled, by the type.)
    """
    words = link.words
    while words[AT] < rows.shape[0]:
        at = words[AT]
        outgoing = x[rows[at, FIRST] : rows[at, LAST]]
        own = received[rows[at, START] : rows[at, END]]
        adds = rows[at, DOES] != COPIES
        arriving = incoming[: own.size] if adds else own
        done = exchange(link, outgoing, rows[at, TO], arriving, rows[at, SOURCE])
        if done != READY:
            return done
        if op is not None:
            if adds:
                combine(op, own, arriving)
            if rows[at, DOES] == ENDS:
                divide(own, divisor)
        words[AT] += 1
    return READY
