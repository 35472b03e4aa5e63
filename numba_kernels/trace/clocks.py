"""Compare the clocks of ranks, and collect their traces on rank 0.

The ranks of a node read the same clock. Clocks of different nodes start when their node boots, so
rank 0 asks the first rank of each other node for its time (Cristian's algorithm: "Probabilistic
clock synchronization", Distributed Computing 3, 1989):

    rank 0       t0 ---.             .---> t1        offset = t - (t0 + t1) / 2
    other node          '---> t ----'                wrong by (t1 - t0) / 2 at most

The shortest of many exchanges is used. Clocks also drift, by some 10 us per second, so they are
compared at the beginning and at the end, with linear interpolation in between.
"""

from __future__ import annotations

import time
from time import perf_counter_ns

import numpy as np
from mpi4py import MPI

EXCHANGES = 100
TAG = 2
clock = perf_counter_ns  # the clock of the spans in recording.py


def compare_clocks(team) -> tuple[int, int, int]:
    """Compare this rank's clock with rank 0's. Collective.

    Returns:
        (this rank's time, its offset from rank 0's clock, largest error of the offset), in ns. On
        the node of rank 0 the last two are 0.
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
        _send(team, nothing, peer)
        _receive(team, answer, peer)
        times[each, 1] = clock()
    _send(team, times, peer)


def _answer(team) -> list[int]:
    mine = np.empty(EXCHANGES, np.int64)  # t
    nothing = np.zeros(1, np.int64)
    for each in range(EXCHANGES):
        _receive(team, nothing, 0)
        mine[each] = clock()
        _send(team, mine[each : each + 1], 0)
    times = np.empty((EXCHANGES, 2), np.int64)
    _receive(team, times, 0)
    took = times[:, 1] - times[:, 0]
    best = int(took.argmin())
    middle = int(times[best, 0]) + int(took[best]) // 2
    return [int(mine[best]), int(mine[best]) - middle, (int(took[best]) + 1) // 2]


def collect(team, content: bytes) -> list[bytes] | None:
    """Return every rank's `content`, in order, on rank 0, and None on the others. Collective."""
    lengths = team.allgather(np.array([len(content)], np.int64))[:, 0]
    if team.rank:
        _send(team, np.frombuffer(content, np.uint8), 0)
        return None
    found = [content]
    for rank in range(1, team.size):
        found.append(bytes(_receive(team, np.empty(lengths[rank], np.uint8), rank)))
    return found


def _send(team, x: np.ndarray, to: int) -> None:
    _finish(team, team.comm.Isend([x, MPI.BYTE], to, TAG))


def _receive(team, x: np.ndarray, source: int) -> np.ndarray:
    _finish(team, team.comm.Irecv([x, MPI.BYTE], source, TAG))
    return x


def _finish(team, request: MPI.Request) -> None:
    """Wait for `request`: poll for 1 ms, then wait as a team does, with pauses between polls."""
    soon = time.monotonic() + 0.001
    while not request.Test():
        if time.monotonic() > soon:
            team._until(request.Test)
            return
