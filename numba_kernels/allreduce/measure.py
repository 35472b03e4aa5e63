"""Measure how long messages, additions and reductions take on this machine, for costs.py.

    team.machine = costs.measure(team)      # by all ranks; "auto" uses these numbers from then on

Everything is timed under the conditions of an allreduce: the vector sent has just been added to,
the vector added has just arrived, all ranks exchange at the same time, and ranks that take no part
wait as they would. So the curves include the effects of caches, of the sizes at which the MPI
library changes protocol, and of more ranks than cores. A straight line does not.

    message        0 --x--> last, 0 <--x-- last: one at a time, while all others wait
    exchange       each rank sends x to its right and receives from its left, all at once
    add            an exchange followed by x += the vector received, minus the exchange alone
    call           the smallest exchange in a call by itself, minus the same in a call of many
    lane           an exchange between counterparts on different nodes, all ranks at once
    single         the same of one rank per node
    inside         reduce-scatter, then allgather, within each node, as two_level does
    leaders        what leaders.py does within each node
    window, staged, library: allreduces, as users call them

Two alternatives gave worse predictions: sending a vector that has not been written since (it is
still in the receiver's cache, so messages look cheap and additions expensive), and medians (other
programs can only add time).
"""

import time
from collections.abc import Callable

import numpy as np

from ..jit.compile import compiled
from ..shared.board import READY
from ..shared.node_array import LEAD
from . import calls, gather, leaders, staged
from .elementwise import SUM, combine
from .machine import Curve, Machine
from .messages import AT, exchange

SIZES = tuple(4**k for k in range(5, 13))  # bytes: 1 KiB to 16 MiB
BATCH = 2**20  # bytes per timed batch, of at most CALLS calls
CALLS = 50
SECONDS = 1.2  # of measuring; setting up takes some tenths of a second more
ROUNDS = 9  # at most


def measure(team) -> Machine:
    """Measure the components of the collectives of `team`, and set `team.machine` to the result.

    Collective. It takes less than two seconds (longer the first time, when it compiles) and 48 MiB
    per rank meanwhile. The Machine is the same, bit for bit, on all ranks.
    """
    if team.size == 1:
        return team.machine
    x, incoming = (np.full(SIZES[-1] // 4, 0, np.float32) for _ in range(2))
    window = team.empty(x.size) if team.single_node else x
    contestants = {
        (name, size): (call, min(CALLS, max(1, BATCH // size)))
        for size in SIZES
        for name, call in _contestants(team, *(a[: size // 4] for a in (x, incoming, window)))
    }
    found = {}
    for (name, _), seconds in zip(contestants, _in_turns(team, contestants.values()), strict=True):
        found.setdefault(name, []).append(seconds)
    del contestants, window
    team.machine = machine_of({name: np.array(s) for name, s in found.items()}, team)
    return team.machine


def machine_of(seconds: dict[str, np.ndarray], team) -> Machine:
    """Derive a Machine from the seconds of each contestant, shape (sizes,)."""
    call = float(max(seconds.pop("called")[0] - seconds["exchange"][0], 0))
    # Noise can make the difference anything; adding a vector in the cache is a lower bound.
    seconds["add"] = np.maximum(
        seconds.pop("exchange and add") - seconds["exchange"], seconds["add"]
    )
    alpha, beta = fit(seconds["message"])
    gamma = _slope(seconds["add"])
    curves = {name: Curve(SIZES[: len(s)], tuple(map(float, s))) for name, s in seconds.items()}
    return Machine(
        alpha, beta, gamma, **curves, call=call, ranks=team.size, per_node=team.lanes.count,
        nodes=len(team.nodes),
    )  # fmt: skip


def fit(seconds: np.ndarray) -> tuple[float, float]:
    """Fit the line alpha + beta m; neither alpha nor beta is negative.

    It minimises the squares of the relative errors: a microsecond matters for a small message but
    not for a large one.
    """
    A = np.stack([np.ones(len(SIZES)), SIZES], axis=1) / seconds[:, None]
    alpha, beta = np.linalg.lstsq(A, np.ones(len(SIZES)))[0]
    return (float(alpha), float(beta)) if alpha > 0 < beta else (0.0, _slope(seconds))


def _slope(seconds: np.ndarray) -> float:
    """Fit a line through the origin in the same way; returns its slope."""
    ratios = SIZES / seconds
    return float(ratios.sum() / (ratios**2).sum())


def _contestants(team, x, incoming, window):
    """Yield (name, function) of everything that is timed with vectors of this length."""
    call = calls.encode("measure", x.dtype)

    def one_by_one(times):
        for _ in range(times):
            team.by_messages(call, x.size, x.dtype, around, (x, incoming, 1, False))

    def each(kernel, *arguments):
        def run(times):
            all_of_it = (x, incoming, times, *arguments)
            team.by_messages(call, x.size, x.dtype, kernel, all_of_it)

        return run

    def allreduce(x, algorithm):
        def run(times):
            for _ in range(times):
                team.allreduce(x, algorithm=algorithm)

        return run

    if x.nbytes == SIZES[0]:
        yield "called", one_by_one
    yield "message", each(back_and_forth)
    yield "exchange", each(around, False)
    yield "exchange and add", each(around, True)
    yield "library", allreduce(x, "mpi")
    if team.single_node:
        yield "window", allreduce(window, "shared_memory")
        yield "staged", allreduce(x, "shared_memory")
    yield from contestants(team, x, incoming, call, x.size)


def contestants(team, x, incoming, call: int, length: int):
    """Yield those of which two_level consists, as parts of the collective (`call`, `length`)."""
    edges = team.lanes.edges(x.size)

    def additions(times):
        for _ in range(times):
            combine(SUM, x, incoming)

    def exchanges(takes_part):
        def run(times):
            if takes_part:
                arguments = (x, incoming, times, False)
                team.by_messages(call, length, x.dtype, around, arguments, team.lanes.route)
            else:
                team.skip()

        return run

    def inside(times):
        for _ in range(times):
            team.on_node(staged.allreduce, call, x, edges, SUM, 1, False, length=length)
            team.on_node(gather.allgather, call, x, edges, length=length)

    def lead(times):
        for _ in range(times):
            team.by_leaders(leaders.on_node, call, x, incoming, SUM, 1)

    yield "add", additions
    if max(map(len, team.nodes)) > 1:
        yield "inside", inside
        if x.nbytes <= LEAD:
            yield "leaders", lead
    if len(team.nodes) > 1:
        yield "lane", exchanges(team.lanes.route is not None)
        yield "single", exchanges(team.place == 0)


@compiled
def back_and_forth(link, rank, ranks, x, incoming, times):
    """Send `times` messages, alternately from the first rank to the last and back. Resumable.

    The other ranks wait for a message too; the first rank sends it at the end.
    """
    words, nothing, other = link.words, x[:0], ranks - 1 - rank
    if rank != 0 and other != 0:
        return exchange(link, nothing, -1, nothing, 0)
    while words[AT] < times + (ranks - 2 if rank == 0 else 0):
        if words[AT] >= times:
            done = exchange(link, nothing, words[AT] - times + 1, nothing, -1)
        elif (words[AT] % 2 == 0) == (rank == 0):
            done = exchange(link, x, other, nothing, -1)
        else:
            done = exchange(link, nothing, -1, x, other)
        if done != READY:
            return done
        words[AT] += 1
    return READY


@compiled
def around(link, rank, ranks, x, incoming, times, adds):
    """Do `times` exchanges of all ranks with both their neighbours in a ring. Resumable.

    The vector sent has just been written, by an addition or by the last receive.
    """
    words, right, left = link.words, (rank + 1) % ranks, (rank - 1 + ranks) % ranks
    while words[AT] < times:
        if adds or words[AT] % 2 == 0:
            done = exchange(link, x, right, incoming, left)
        else:
            done = exchange(link, incoming, right, x, left)
        if done != READY:
            return done
        if adds:
            combine(SUM, x, incoming)
        words[AT] += 1
    return READY


def _in_turns(team, contestants: list[tuple[Callable, int]]) -> np.ndarray:
    """Return the seconds of one call of each contestant: slowest rank, fastest round."""
    for call, _ in contestants:
        call(1)  # to compile it, and to touch its memory
    ends = time.perf_counter() + SECONDS
    rounds, late = [], np.zeros(1)
    while len(rounds) < ROUNDS and not late[0]:
        times = np.array([_batch(team, *contestant) for contestant in contestants])
        rounds.append(team.allreduce(times, op="max", algorithm="tree"))
        late[0] = time.perf_counter() > ends
        team.allreduce(late, op="max", algorithm="tree")
    return np.min(rounds, axis=0)


def _batch(team, call, times: int) -> float:
    call(1)  # not timed: the caches still hold the data of the contestant before
    team.barrier()
    began = time.perf_counter()
    call(times)
    team.barrier()
    return (time.perf_counter() - began) / times
