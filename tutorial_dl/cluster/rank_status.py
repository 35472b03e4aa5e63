"""What ranks do, in words: "ranks 0-2 wait in barrier for rank 3; rank 3 computes".

Nothing here waits for a busy engine: engines are asked on their control channel
(engine_probe.py), and the operating system about processes of this node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import psutil

from .protocol import Doing

BLOCKED = 1.5  # seconds without a response in a raw MPI call before it counts as blocked
AWAKE = 5.0  # percent of a core; below, a cell that waits for nothing we know is only "running"
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


def still(numbers: Mapping[int, int | None], answers: Mapping[int, Doing]) -> list[str]:
    """One line per position of ranks that still run these cells of the notebook, by rank."""
    where = {}
    for rank, number in numbers.items():
        parts = [f"cell In[{number}]"] if number is not None else []
        parts += [answers[rank].where()] if rank in answers else []
        where[rank] = f"in {', '.join(parts)}" if parts else ""
    return sentences(("still computes", "still compute"), where)


# The table of a cluster's engines


class Row(NamedTuple):
    """One engine.

    `kind`, by which it is coloured: "idle"; in a cell "busy", "waiting" for other ranks or
    "blocked" in an MPI call that can't be interrupted; "halted" by a signal; "silent": compiled
    code keeps it from answering, or the machine is busy; "dead"; "gone" with the whole cluster.
    """

    rank: int
    host: str
    pid: int
    kind: str
    state: str  # in words
    call: str = ""  # the expression in the cell that it is in
    memory: int | None = None  # resident bytes; None if unknown
    processor: float | None = None  # percent of one core; None if unknown
    shares: tuple[float, ...] = ()  # computing, talking, waiting; () if no rank calls a team


def rows(cluster, seconds: float = 0.3) -> list[Row]:
    """The state of every engine; waits at most about `seconds` for answers."""
    phase, status = cluster.phase, cluster.status()
    if phase != "running":
        return [Row(e.rank, e.host, e.pid, "gone", phase) for e in status]
    cells = cluster.cells
    alive = [engine.rank for engine in status if engine.alive]
    codes = {rank: cell.code for rank, cell in cells.now.items()}
    answers = cells.asking.ask(alive, codes, seconds) if alive else {}
    absent, teams = missing(answers), any(doing.talks for doing in answers.values())
    table = []
    for engine, (_, process, *_) in zip(status, cluster.places, strict=True):
        row = Row(engine.rank, engine.host, engine.pid, "silent", "no answer")
        doing = answers.get(engine.rank)
        if doing is not None:
            kind, state = in_words(doing, absent.get(engine.rank, []))
            row = row._replace(kind=kind, state=state)
            if doing.state == "running":
                row = row._replace(call=doing.where())
                if teams:
                    row = row._replace(shares=tuple(doing.shares))
            if doing.memory:  # else a position that it wrote, because it could not answer
                row = row._replace(memory=doing.memory, processor=doing.processor)
        with contextlib.suppress(psutil.Error):
            if process is not None and engine.alive:
                row = row._replace(memory=process.memory_info().rss)
                if process.status() == psutil.STATUS_STOPPED:
                    row = row._replace(kind="halted", state="stopped by a signal", processor=None)
        if not engine.alive:
            how = dead(engine.rank, cells.deaths)
            row = Row(engine.rank, engine.host, engine.pid, "dead", how)
        table.append(row)
    return table


def in_words(doing, absent: list[int]) -> tuple[str, str]:
    """(kind, state) of an engine that waits for the ranks `absent`, if for any."""
    if doing.state != "running":
        return "idle", "idle"
    if doing.blocked > BLOCKED:
        return "blocked", f"blocked in {doing.call or 'MPI'}, which nothing can interrupt"
    if doing.waits:
        return "waiting", f"waiting {waits_in(doing, absent)}"
    if doing.mpi:
        return "busy", "in an MPI call"
    return "busy", "computing" if doing.processor >= AWAKE or not doing.memory else "running"


def dead(rank: int, deaths) -> str:
    """How an engine ended; mpiexec ends all ranks of its world soon after the first."""
    if rank in deaths.first:
        return f"dead: {deaths.how}"
    first = f", with {ranks(deaths.first)}" if len(deaths.first) == 1 else ""
    return f"dead: ended{first}"


def summary(cluster, table: list[Row]) -> str:
    """One line on the whole cluster."""
    phase = cluster.phase
    if phase == "running":
        alive = sum(row.kind != "dead" for row in table)
        return f"Cluster: {alive} of {cluster.n} engines alive"
    return "Cluster: " + {
        "stopped": "it was stopped",
        "left": f"this notebook has left it; cluster.join({cluster.name!r}) connects again",
        "restarting": "its engines are starting",
        "replaced": "another notebook has restarted it; "
        f"cluster.join({cluster.name!r}) connects to the new engines",
    }.get(phase, phase)
