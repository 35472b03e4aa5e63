"""Learn the link between nodes, at a team's first call for which it matters. Users need not ask.

    lane      all lanes at once exchange vectors with their counterparts on the next node
    single    one rank per node does; the others wait
    inside    reduce-scatter and allgather on the node, as two_level.py does
    leaders   the node's part of leaders.py
    add       adding a vector

Each is timed with vectors of SIZES bytes, the shortest first, and after each size all ranks agree
on the times (slowest rank, fastest round) and on whether to go on: a slow link is known after a few
messages. It takes 10 to 60 ms, or some 250 times the latency of a slow link, not counting the
loading of compiled code. (measure.py measures more, and longer, for predictions.)

The ranks run ordinary collectives, in the name of the call in which they learn. So a failure or a
different call of another rank is noticed as in any call.

Times are never quite the same again, and so neither is a choice between two ways that are about as
fast. The ways between which it chooses add in the same order, so this does not change a result.
"""

import time

import numpy as np

from ..shared.node_array import LEAD
from . import measure, tree
from .elementwise import MAX
from .kernel import follow
from .machine import Curve, Machine

SIZES = (512, 4096, LEAD, 4 * LEAD)  # bytes
CALLS = (12, 12, 4, 2)  # in a row, so that it matters little whether ranks begin together
ROUNDS = 3
LEAST = 2  # sizes: a line needs two points
BUDGET = 0.02  # seconds of timed calls, after which no longer vector is tried


def learn(team, call: int, length: int) -> None:
    """Set `team.machine` to what this link and node can do. Collective, in the name of `call`."""
    both = np.zeros(SIZES[-1] // 2, np.float32)
    spent, table = 0.0, []
    agree(team, call, length, np.zeros(1))  # all ranks make this call
    for size, calls in zip(SIZES, CALLS, strict=True):
        runs = [*measure.contestants(team, both[: size // 2], call, length)]
        for _, run in runs:
            run(1)  # to compile it, and to touch its memory
        rounds = []
        for _ in range(ROUNDS):
            times = [seconds_of(team, call, length, *named, size, calls) for named in runs]
            rounds.append(agree(team, call, length, np.array(times)))
            spent += calls * rounds[-1].sum()
            if spent > BUDGET and len(rounds) > 1:
                break
        names = [name for name, _ in runs]
        table.append(dict(zip(names, np.min(rounds, axis=0).tolist(), strict=True)))
        if spent > BUDGET and len(table) >= LEAST:
            break
    team.machine = machine_of(table, team)


def seconds_of(team, call: int, length: int, name: str, run, size: int, calls: int) -> float:
    """Return the seconds of one run of `name` with vectors of `size` bytes, on this rank."""
    agree(team, call, length, np.zeros(1))
    began = time.perf_counter()
    run(calls)
    return (time.perf_counter() - began) / calls


def agree(team, call: int, length: int, numbers: np.ndarray) -> np.ndarray:
    """Return the largest of each number over all ranks, in the precision of float32."""
    sent = numbers.astype(np.float32)
    follow(team, call, tree.steps, sent, MAX, 1, length=length)
    return sent.astype(np.float64)


def machine_of(table: list[dict[str, float]], team) -> Machine:
    """Return the Machine for these seconds, a dict per size."""

    def curve(name: str) -> Curve | None:
        points = [(n, row[name]) for n, row in zip(SIZES, table, strict=False) if name in row]
        return rising(*zip(*points, strict=True)) if points else None

    lane, add = curve("lane"), curve("add")
    curves = {name: curve(name) for name in ("single", "inside", "leaders")}
    last = lane.sizes[-1]
    return Machine(
        lane.seconds[0], lane(last) / last, add(last) / last, lane, lane, add, lane=lane, **curves,
        ranks=team.size, per_node=team.lanes.count, nodes=len(team.nodes),
    )  # fmt: skip


def rising(sizes, seconds) -> Curve:
    """Return a curve that never falls: it goes on along its last piece, to any length."""
    return Curve(tuple(map(float, sizes)), tuple(map(float, np.maximum.accumulate(seconds))))
