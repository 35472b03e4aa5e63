"""What this process is doing, for another of its threads to ask at any time.

Nothing here costs a collective anything: it reads what a rank that waits long has noted (stall.py),
what ranks write on the node's board anyway, and which function each thread is in.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from threading import get_ident
from typing import NamedTuple

from ..shared.board import COUNT
from .failure import live
from .stall import waiting

COMPUTING, TALKING, WAITING = KINDS = ("computing", "talking", "waiting")
ROOMS = tuple(f"numba_kernels.{room}." for room in ("team", "allreduce", "star"))


class Wait(NamedTuple):
    """What this process has waited in for some milliseconds or more."""

    call: str  # such as "barrier()"
    seconds: float
    number: int  # of the call, among those of its team
    ranks: list[int]  # the team's, as MPI.COMM_WORLD numbers them
    missing: list[int] | None  # those of them that it waits for; None: not known here


def wait() -> Wait | None:
    """Return what this process waits in; None if nothing."""
    for watch in reversed(waiting[:]):
        team, seconds = watch.team, time.monotonic() - watch.began
        absent, places = watch.awaited(), team.world_ranks
        missing = None if absent is None else sorted(places[rank] for rank in absent)
        return Wait(team.doing, seconds, team.waits_in[0], watch.ranks(), missing)
    return None


def calls() -> int:
    """Return a number that changes when this process calls a team."""
    with suppress(RuntimeError):  # another thread makes a team
        return sum(team.count + 1000 * team.generation for team in live)
    return 0


def kind() -> str:
    """Return what this process does at this moment, one of KINDS.

    A short wait for messages counts as talking, as it includes the time of their transfer.
    """
    if waiting:
        return WAITING
    mine = get_ident()
    frames = [frame for thread, frame in sys._current_frames().items() if thread != mine]
    names = (frame.f_globals.get("__name__", "") for frame in frames)
    if not any(name.startswith(ROOMS) for name in names):
        return COMPUTING
    with suppress(RuntimeError):  # another thread makes a team
        for team in live:
            if team.board is None or team.failure is not None or len(team.node) == 1:
                continue
            counts = team.board[:, COUNT]
            if counts[team.place] > counts.min():  # this rank has arrived, another one has not
                return WAITING
    return TALKING
