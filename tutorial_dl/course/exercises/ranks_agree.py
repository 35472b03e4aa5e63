"""Exercises of %%px cells: every rank checks its own part, and rank 0 prints one line for all.

Each rank sends its verdict to rank 0. If one rank's error made the others wait, only the error is
told; ranks that give the same hint share a line. A rank that never comes is named after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .answers import NotYet, must_be_function, must_return
from .own_line import RIGHT, WAITED, WRONG, Verdict, verdict_on

SECONDS = 20.0  # for which rank 0 waits for the verdicts of the others


def every_rank(judge: Callable[[Any], str]) -> Callable[[Any], str]:
    """Mark a judge as one that every rank calls, in a %%px cell."""
    judge.every_rank = True
    return judge


def together(judged: Callable[[], str]) -> bool:
    """Judge on every rank; rank 0 prints one line for all. Whether this rank's part is right."""
    from mpi4py import MPI

    comm = (
        MPI.COMM_WORLD.Dup()
    )  # so that a verdict that comes too late is not taken for a later one
    mine = verdict_on(judged)
    if comm.rank:
        request = comm.isend(tuple(mine), 0)
        _until(lambda: request.test()[0], SECONDS)
    else:
        print(summary({0: mine} | _collect(comm), comm.size))
    return mine.passed


def _collect(comm) -> dict[int, Verdict]:
    """The verdicts of the other ranks that came in time."""
    found: dict[int, Verdict] = {}

    def all_there() -> bool:
        for rank in set(range(1, comm.size)) - set(found):
            if comm.iprobe(source=rank):
                found[rank] = Verdict(*comm.recv(source=rank))
        return len(found) == comm.size - 1

    _until(all_there, SECONDS)
    return found


def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.001)  # ranks may outnumber cores


def summary(verdicts: dict[int, Verdict], size: int) -> Verdict:
    """One verdict for all ranks: what they agree on, or what is nearest to the cause.

    >>> str(summary({0: Verdict(RIGHT, "as one"), 1: Verdict(RIGHT, "as one")}, 2))
    'correct: as one'
    >>> str(summary({0: Verdict(WAITED, "rank 1 failed"), 1: Verdict(3, "KeyError: 5")}, 2))
    'not yet: rank 1: KeyError: 5'
    """
    absent = [rank for rank in range(size) if rank not in verdicts]
    worst = max(verdict.weight for verdict in verdicts.values())
    if absent and worst <= WAITED:
        away = f"{_ranks(absent)} did not come to the end of the check"
        return Verdict(WAITED, away)
    worst_ranks = [rank for rank in sorted(verdicts) if verdicts[rank].weight == worst]
    texts = [verdicts[rank].text for rank in worst_ranks]
    first = verdicts[worst_ranks[texts.index(max(texts, key=texts.count))]]  # the most common
    if worst == RIGHT:
        return first
    alike = [rank for rank in worst_ranks if verdicts[rank].text == first.text]
    if worst == WAITED and len(worst_ranks) == size > 1:
        return Verdict(worst, f"the ranks wait for one another; {first.text}")
    if len(alike) == size:
        return first
    text = first.text if first.text.startswith("rank ") else f"{_ranks(alike)}: {first.text}"
    right = [rank for rank in sorted(verdicts) if verdicts[rank].passed]
    if worst == WRONG and len(worst_ranks) == size:
        text += "; no rank has it right"
    return Verdict(
        worst,
        f"{text}; {_ranks(right)} {'have' if right[1:] else 'has'} it right" if right else text,
    )


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s'[: len(numbers) != 1]} {', '.join(map(str, numbers))}"


# For the judges ---------------------------------------------------------------------------------


def call_on_ranks(function: Any, team: Any, *arguments: Any) -> Any:
    """Call the learner's function on every rank, with the team before the arguments."""
    must_be_function(function)
    with aborting(team):
        found = function(team, *arguments)
    must_return(found)
    return found


@contextmanager
def aborting(team: Any) -> Iterator[None]:
    """Leave the team if the body fails, so that the others need not wait for this rank."""
    try:
        yield
    except BaseException as error:
        team.abort(error)
        raise


def must_reduce(team: Any) -> None:
    """Raise NotYet unless the team has counted an allreduce of this rank."""
    if not team.calls:
        raise NotYet(
            "a rank that calls no allreduce: all ranks must call it, also those without samples"
        )


def must_reduce_once(team: Any, what: str) -> None:
    """Raise NotYet unless the team has counted one allreduce; `what` names what is right."""
    if team.calls != 1:
        raise NotYet(f"{what} is right, but took {team.calls} allreduces; one is enough")
