"""Compare the clocks of ranks.

The ranks of a node read the same clock. Clocks of different nodes start when their node boots, so
rank 0 asks the first rank of each other node for its time (Cristian's algorithm: "Probabilistic
clock synchronization", Distributed Computing 3, 1989):

    rank 0       t0 ---.             .---> t1        offset = t - (t0 + t1) / 2
    other node          '---> t ----'                wrong by (t1 - t0) / 2 at most

The shortest of many exchanges is used. Clocks also drift, by some 10 us per second, so they are
compared at the beginning and at the end, with linear interpolation in between.
"""

from time import perf_counter_ns

import numpy as np

from ..team.bytes import receive, send

EXCHANGES = 100
clock = perf_counter_ns  # the clock of the spans in recording.py


def compare_clocks(team) -> tuple[int, int, int]:
    """Compare this rank's clock with rank 0's. Collective.

    Returns (this rank's time, its offset from rank 0's clock, largest error of the offset), in ns.
    """
    found = [clock(), 0, 0]
    for members in team.nodes[1:]:  # rank 0 is on the first one
        if team.rank == 0:
            _ask(team, members[0])
        elif team.rank == members[0]:
            found = _answer(team)
    table = team.allgather(np.array(found, np.int64))
    leader = next(members[0] for members in team.nodes if team.rank in members)
    return tuple(map(int, table[leader]))


def _ask(team, peer: int) -> None:
    """Rank 0: exchange with `peer`, and send it t0 and t1 of all exchanges at the end."""
    times = np.empty((EXCHANGES, 2), np.int64)  # t0, t1
    nothing, answer = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for each in range(EXCHANGES):
        times[each, 0] = clock()
        send(team, nothing, peer)
        receive(team, answer, peer)
        times[each, 1] = clock()
    send(team, times, peer)


def _answer(team) -> list[int]:
    mine = np.empty(EXCHANGES, np.int64)  # t
    nothing = np.zeros(1, np.int64)
    for each in range(EXCHANGES):
        receive(team, nothing, 0)
        mine[each] = clock()
        send(team, mine[each : each + 1], 0)
    times = np.empty((EXCHANGES, 2), np.int64)
    receive(team, times, 0)
    took = times[:, 1] - times[:, 0]
    best = int(took.argmin())
    middle = int(times[best, 0]) + int(took[best]) // 2
    return [int(mine[best]), int(mine[best]) - middle, (int(took[best]) + 1) // 2]
