"""What ranks do, in words: "ranks 0-2 wait in barrier for rank 3; rank 3 computes".

Nothing here waits for a busy engine: engines are asked on their control channel
(client.py), and the operating system about processes of this node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .protocol import Doing

BLOCKED = 1.5  # seconds without a response in a raw MPI call before it counts as blocked
# Verbs, for one rank and for several
WAIT, COMPUTE, BE = ("waits", "wait"), ("computes", "compute"), ("is", "are")
WERE, STILL = ("was", "were"), ("is still", "are still")


def fold(numbers: Iterable[int]) -> str:
    """Format numbers in ascending order, three or more in a row as a range: "0, 1, 4-7"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return ", ".join(word for part in parts for word in part)


def ranks(numbers: Iterable[int]) -> str:
    """Format ranks as "rank 3", "ranks 0, 2" or "ranks 0-3"."""
    numbers = set(numbers)
    return f"rank{'s'[: len(numbers) != 1]} {fold(numbers)}"


def sentences(verb: tuple[str, str], what: Mapping[int, str]) -> list[str]:
    """One sentence for each text of `what`, which is by rank: "ranks 0-2 wait in barrier"."""
    groups: dict[str, list[int]] = {}
    for rank, text in what.items():
        groups.setdefault(text, []).append(rank)
    return [f"{ranks(some)} {verb[len(some) > 1]} {text}".rstrip() for text, some in groups.items()]


def missing(answers: Mapping[int, Doing]) -> dict[int, list[int]]:
    """The ranks that each waiting rank waits for, by rank; no entry for ranks that do not wait.

    A rank that waits for messages does not know who is late. But no rank of its team that waits in
    the same call is, so the others are.
    """
    waiting = {rank: doing for rank, doing in answers.items() if doing.waits}
    found = {}
    for rank, doing in waiting.items():
        together = {other for other, each in waiting.items() if each.meeting() == doing.meeting()}
        absent = doing.team if doing.missing is None else doing.missing
        found[rank] = sorted(set(absent) - together)
    return found


def waits(answers: Mapping[int, Doing]) -> list[str]:
    """A sentence for each group of ranks that wait in the same call for the same ranks."""
    absent = missing(answers)
    return sentences(WAIT, {rank: waits_in(answers[rank], absent[rank]) for rank in absent})


def waits_in(doing: Doing, absent: Iterable[int]) -> str:
    """What follows "wait" or "waiting": "in barrier for rank 3"."""
    absent = list(absent)
    return f"in {doing.waits}{f' for {ranks(absent)}' if absent else ''}"


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
    running = {rank: answers[rank] for rank in sorted(pending) if rank in answers}
    in_mpi = {k: f"in {each.where()}" for k, each in running.items() if each.mpi and not each.waits}
    known = {*stopped, *in_mpi, *(rank for rank, doing in running.items() if doing.waits)}
    parts = waits(running) + sentences(WAIT, in_mpi)
    parts += sentences(COMPUTE, dict.fromkeys(sorted(set(pending) - known), ""))
    parts += sentences(BE, dict.fromkeys(sorted(stopped), "stopped by a signal"))
    return "; ".join(parts + sentences(BE, dict.fromkeys(sorted(done), "done")))


def positions(answers: Mapping[int, Doing], verb: tuple[str, str] = BE) -> list[str]:
    """One line per position and state, with all ranks that are there."""
    what = {}
    for rank, doing in answers.items():
        blocked = doing.blocked > BLOCKED or (doing.mpi and verb == STILL)
        what[rank] = f"{'blocked in' if blocked else 'in'} {doing.where()}"
        what[rank] += ", which nothing can interrupt" if blocked else ""
    return sentences(verb, what)


def still(cells: Mapping, answers: Mapping[int, Doing]) -> list[str]:
    """One line per position of ranks that still run these cells, which are by rank."""
    where = {}
    for rank, cell in cells.items():
        number = cell.about.number
        parts = [f"cell In[{number}]"] if number is not None else []
        parts += [answers[rank].where()] if rank in answers else []
        where[rank] = f"in {', '.join(parts)}" if parts else ""
    return sentences(("still computes", "still compute"), where)
