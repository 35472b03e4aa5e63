"""Measure how long messages, additions and reductions take on this machine, for costs.py.

    team.machine = costs.measure(team)      # by all ranks; "auto" uses it until a recovery

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

from ..shared.node_array import LEAD
from . import calls, gather, leaders, staged
from .elementwise import SUM, combine
from .kernel import NOTHING, carry_out, table
from .machine import Curve, Machine
from .steps import ADDS, COPIES, Step, Steps

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
    both = np.full(SIZES[-1] // 2, 0, np.float32)  # the vector that is sent, and what comes
    window = team.empty(both.size // 2) if team.single_node else both
    contestants = {
        (name, size): (call, min(CALLS, max(1, BATCH // size)))
        for size in SIZES
        for name, call in _contestants(team, both[: size // 2], window[: size // 4])
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


def _contestants(team, both, window):
    """Yield (name, function) of everything that is timed with vectors of this length."""
    call, x = calls.encode("measure", both.dtype), both[: both.size // 2]

    def one_by_one(times):
        for _ in range(times):
            go(team, call, x.size, both, around, 1, False)

    def each(steps, *more):
        return lambda times: go(team, call, x.size, both, steps, times, *more)

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
    yield from contestants(team, both, call, x.size)


def contestants(team, both, call: int, length: int):
    """Yield those of which two_level consists, as parts of the collective (`call`, `length`)."""
    x, incoming = both.reshape(2, -1)
    edges = team.lanes.edges(x.size)

    def additions(times):
        for _ in range(times):
            combine(SUM, x, incoming)

    def exchanges(takes_part):
        def run(times):
            if takes_part:
                go(team, call, length, both, around, times, False, way=team.lanes.route)
            else:
                team.skip()

        return run

    def inside(times):
        for _ in range(times):
            team.on_node(staged.allreduce, call, x, edges, SUM, 1, False, length=length)
            team.on_node(gather.allgather, call, x, edges, length=length)

    def lead(times):
        for _ in range(times):
            team.by_leaders(leaders.allreduce, call, x, incoming, SUM, 1, NOTHING)

    yield "add", additions
    if max(map(len, team.nodes)) > 1:
        yield "inside", inside
        if x.nbytes <= LEAD:
            yield "leaders", lead
    if len(team.nodes) > 1:
        yield "lane", exchanges(team.lanes.route is not None)
        yield "single", exchanges(team.place == 0)


def go(team, call: int, length: int, both, steps, *more, way=None) -> None:
    """Carry out steps with the two halves of `both`: what is added arrives in the second one."""
    _, rank, ranks = way or team.routes[0]
    rows = table(steps, rank, ranks, both.size, None, more)
    arguments = (both, both, both[both.size // 2 :], SUM, 1, rows)
    team.by_messages(call, length, both.dtype, carry_out, arguments, way)


def back_and_forth(rank: int, ranks: int, times: int) -> Steps:
    """`times` messages, alternately from the first rank to the last and back.

    The other ranks wait for an empty message, which the first rank sends at the end.
    """
    last = ranks - 1
    for number in range(times if rank in (0, last) else 0):
        sends = (number % 2 == 0) == (rank == 0)
        yield Step(to=last - rank, chunks=2) if sends else Step(source=last - rank, chunks=2)
    for other in range(1, last):
        if rank == 0:
            yield Step(to=other, sent=(0, 0))
        elif rank == other:
            yield Step(source=0, received=(0, 0))


def around(rank: int, ranks: int, times: int, adds: bool) -> Steps:
    """`times` exchanges of all ranks with both their neighbours in a ring.

    The vector sent has just been written, by an addition or by the last receive.
    """
    halves = (0, 1), (1, 2)
    for number in range(times):
        spans = (halves[0], halves[0]) if adds else halves[:: 1 if number % 2 == 0 else -1]
        yield Step((rank + 1) % ranks, (rank - 1) % ranks, ADDS if adds else COPIES, *spans, 2)


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
