"""Messages that are on their way while their ranks compute.

    exchange = begin(team, outgoing, right, incoming, left)
    ...                         compute; `outgoing` may be read, `incoming` must not be touched
    exchange.wait()             now `incoming` is complete, and `outgoing` may be overwritten

`begin` is a collective: all ranks of the team make it, in the same order as its other calls.
Several exchanges may be on their way at once. A rank that fails meanwhile ends the others' waits,
and a recovery discards what is on its way, as for any call of a team.

MPI moves long messages only while a rank is in one of its functions. So between two parts of a long
computation, call `exchange.progress()`, which takes about a microsecond.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from mpi4py import MPI

from .. import spans
from ..allreduce import calls
from ..allreduce.messages import POSTED, SPINS, Route, exchange, post, route
from ..errors import TeamError
from ..jit.compile import compiled
from ..jit.halves import carried
from ..shared.board import READY


class Exchange:
    """A message to one rank, and one from another; see `begin`."""

    def __init__(self, team, way, call: int, length: int, arguments: tuple):
        self.team, self.route, self.generation = team, way, team.generation
        self.call, self.length, self.arguments = call, length, arguments
        self.number = team.count

    def progress(self) -> None:
        """Let MPI move messages, without waiting for any."""
        self.team.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def wait(self) -> None:
        """Wait until both messages have been delivered. Every rank must call it, once."""
        team, way = self.team, self.route
        team.ready()
        if way is None:
            return  # a rank's message to itself: it was copied
        if self.generation != team.generation:
            raise TeamError("this exchange was discarded when the team recovered: begin it again")
        # While it waits, this rank is in the call that began the exchange, though it has made
        # others since: that is the one to compare with the calls of other ranks.
        made, team.count = team.count, self.number
        try:
            with spans.span("exchange"):
                team.run_exchange(self.call, self.length, complete, (*way, *self.arguments))
        finally:
            team.count = made
        team.exchanged.pop(id(way.link), None)
        self.route = None


def begin(
    team, outgoing: np.ndarray, to: int, incoming: np.ndarray, source: int, length: int = 0
) -> Exchange:
    """Begin to send `outgoing` to rank `to`, and to receive `incoming` from rank `source`.

    Every rank must call it, as a collective. If one rank's `to` is another, the other's `source`
    must be the first, and their arrays must have equal lengths.

    Args:
        outgoing, incoming: contiguous arrays of one dtype, which must not move or be freed before
            `wait`; they may have different lengths.
        to, source: ranks; -1 to send nothing, or to receive nothing.
        length: a number that is equal on all ranks, such as that of the whole vector of which this
            is a part; it stands for the call in messages about mismatches.
    """
    sent, received = calls.vector(outgoing, "outgoing"), calls.vector(incoming, "incoming")
    if sent.dtype != received.dtype:
        raise ValueError(f"outgoing is {sent.dtype}, but incoming is {received.dtype}")
    if max(sent.size, received.size) > 2**31 - 1:
        raise ValueError("elements in a message must be at most 2^31 - 1 (MPI)")
    for rank in (to, source):
        if not -1 <= rank < team.size:
            raise ValueError(f"{rank} is not a rank of this team of {team.size}")
    if (to == team.rank) != (source == team.rank):
        raise ValueError("a rank that sends to itself must receive from itself")
    call = calls.encode("exchange", sent.dtype)
    if to == team.rank:
        received[:] = sent
        team.ready()
        team.skip()  # counted as on ranks that send something
        return Exchange(team, None, call, length, ())
    arguments = (carried(sent), to, carried(received), source)
    idle = (one for one in _routes(team) if not one.link.words[POSTED])
    way = next(idle, None) or _add_route(team)
    # Noted before it begins: Ctrl-C may end this call while MPI already uses the buffers.
    team.exchanged[id(way.link)] = arguments
    team.by_messages(call, length, sent.dtype, start, arguments, way)
    return Exchange(team, way, call, length, arguments)


_of_teams: WeakKeyDictionary = WeakKeyDictionary()


def _routes(team) -> list[Route]:
    """The team's routes for exchanges, one for each that is on its way."""
    return _of_teams.setdefault(team, [])


def _add_route(team) -> Route:
    link = team.routes[0].link
    new = route(team.comm, range(team.size), int(link.words[SPINS]), float(link.patience[0]))
    team.routes.append(new)  # so it takes part in failures and recoveries
    _routes(team).append(new)
    return new


@compiled
def start(link, rank, ranks, outgoing, to, incoming, source):
    """Post both messages; `complete`, called with the same arguments, waits for them."""
    post(link, outgoing, to, incoming, source)
    return READY


@compiled
def complete(link, rank, ranks, outgoing, to, incoming, source):
    """Wait until both messages have been delivered. Resumable."""
    return exchange(link, outgoing, to, incoming, source)
