"""What each engine of a cluster is doing, in words.

Nothing here waits for a busy engine: engines are asked on their control channel
(engine_probe.py), and the operating system about processes of this node.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import psutil

from .rank_status import BLOCKED, missing, ranks, waits_in

AWAKE = 5.0  # percent of a core; below, a cell that waits for nothing we know is only "running"


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
