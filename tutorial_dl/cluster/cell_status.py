"""The status of a running cell: one line, such as "12 s: ranks 0-2 wait in barrier for rank 3"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .engine_hooks import Doing
from .rank_words import ranks, waits

EVERY = 1.0  # seconds between two questions to the engines


def status(
    answers: Mapping[int, Doing],
    pending: Iterable[int],
    done: Iterable[int] = (),
    stopped: Iterable[int] = (),
) -> str:
    """What the ranks of a cell do, in one line.

    Args:
        answers: Those of the ranks that have answered. A rank that has not is in compiled code.
        pending, done: The ranks that still run the cell, and those that do not.
        stopped: Those whose process a signal has stopped.
    """
    pending, done, stopped = sorted(pending), sorted(done), sorted(stopped)
    running = {rank: answers[rank] for rank in pending if rank in answers}
    parts = waits(running)
    calls: dict[str, list[int]] = {}
    for rank, doing in running.items():
        if doing.mpi and not doing.waits:
            calls.setdefault(doing.where(), []).append(rank)
    parts += [f"{ranks(group)} {verb('wait', group)} in {call}" for call, group in calls.items()]
    busy = [rank for rank in pending if rank not in running or not _waits(running[rank])]
    if busy := [rank for rank in busy if rank not in stopped]:
        parts.append(f"{ranks(busy)} {verb('compute', busy)}")
    for group, what in (stopped, "stopped by a signal"), (done, "done"):
        if group:
            parts.append(f"{ranks(group)} {'are' if len(group) > 1 else 'is'} {what}")
    return "; ".join(parts)


def _waits(doing: Doing) -> bool:
    return bool(doing.waits or doing.mpi)


def verb(plural: str, subjects: list[int]) -> str:
    return plural if len(subjects) > 1 else f"{plural}s"
