"""A table of what each engine of a cluster is doing: text in a terminal, live in a notebook.

A thread of the notebook's kernel updates the table as long as the kernel lives: each second while a
cell runs, less often otherwise. A table that is no longer updated must not look as if it were. If
this kernel knows that it ends, its last update says why. If the kernel itself ends, nobody is left
to say so; so each update has an animation in CSS that begins when the next one is overdue, greys
the table out and says since when there is no news. An update begins it anew.
"""

from __future__ import annotations

import contextlib
import html
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
from IPython import get_ipython
from IPython.display import display

from . import tables
from .rank_status import BLOCKED, missing, ranks, waits_in

AWAKE = 5.0  # percent of a core; below, a cell that waits for nothing we know is only "running"
EVERY, IDLE = 1.0, 5.0  # seconds between updates, while a cell runs and otherwise
KINDS = ("computing", "talking", "waiting")
SHARES = " / ".join(KINDS)
COLOURS = {"blocked": "bad", "dead": "bad", "halted": "odd", "silent": "odd", "gone": "idle"}

OVER = {"stopped": "the cluster was stopped", "left": "this notebook has left the cluster"}
PHASES = {
    "stopped": "it was stopped",
    "left": "this notebook has left it; cluster.join({name!r}) connects again",
    "restarting": "its engines are starting",
    "replaced": "another notebook has restarted it; cluster.join({name!r}) connects to the new "
    "engines",
}

_shown: Live | None = None  # one live table per kernel: the last one


@dataclass
class Row:
    """One engine.

    `kind`, by which it is coloured: "idle"; in a cell "busy", "waiting" for other ranks or
    "blocked" in an MPI call that can't be interrupted; "halted" by a signal; "silent": compiled
    code keeps it from answering, or the machine is busy; "dead"; "gone" with the whole cluster.
    """

    rank: int
    host: str
    pid: int
    kind: str = "silent"
    state: str = "no answer"  # in words
    call: str = ""  # the expression in the cell that it is in
    memory: int | None = None  # resident bytes; None if unknown
    processor: float | None = None  # percent of one core; None if unknown
    shares: tuple[float, ...] = ()  # computing, talking, waiting; () if no rank calls a team


def rows(cluster, seconds: float = 0.3) -> list[Row]:
    """The state of every engine; waits at most about `seconds` for answers."""
    phase, status, cells = cluster.phase, cluster.status(), cluster.cells
    table = [Row(engine.rank, engine.host, engine.pid) for engine in status]
    alive = [engine.rank for engine in status if engine.alive and phase == "running"]
    answers = cells.ask(alive, seconds) if alive else {}
    absent, teams = missing(answers), any(doing.talks for doing in answers.values())
    for row, (_, process, *_) in zip(table, cluster.places, strict=True):
        doing = answers.get(row.rank)
        if phase != "running":
            row.kind, row.state = "gone", phase
        elif row.rank not in alive:
            # mpiexec ends all ranks of its world soon after the first.
            first = cells.deaths.first
            others = f"ended, with {ranks(first)}" if len(first) == 1 else "ended"
            row.kind = "dead"
            row.state = f"dead: {cells.deaths.how if row.rank in first else others}"
        elif doing is not None:
            row.kind, row.state = in_words(doing, absent.get(row.rank, []))
            if doing.state == "running":
                row.call, row.shares = doing.where(), tuple(doing.shares) if teams else ()
            if doing.memory:  # else a position that it wrote, because it could not answer
                row.memory, row.processor = doing.memory, doing.processor
        with contextlib.suppress(psutil.Error):
            if process is not None and row.rank in alive:
                row.memory = process.memory_info().rss
                if process.status() == psutil.STATUS_STOPPED:
                    row.kind, row.state, row.processor = "halted", "stopped by a signal", None
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


class Table:
    """The state of a cluster at one moment; `over` says why it is not updated any more."""

    def __init__(self, cluster, over: str = ""):
        phase = cluster.phase
        self.rows = rows(cluster)
        alive = sum(row.kind != "dead" for row in self.rows)
        said = PHASES.get(phase, f"{alive} of {cluster.n} engines alive")
        self.summary = f"Cluster: {said.format(name=cluster.name)}"
        self.over, self.time = over, time.localtime()
        self.next: float | None = None  # seconds until the next update; None: this is not live

    @property
    def busy(self) -> bool:
        """Whether an engine is in a cell, or may be."""
        return any(row.kind not in ("idle", "dead", "gone") for row in self.rows)

    def _table(self) -> tuple[list[str], list[list[tables.Cell]]]:
        shares = any(row.shares for row in self.rows)
        head = ["rank", "state", "call", SHARES, "memory", "processor", "host", "pid"]
        body = []
        for row in self.rows:
            cells = [tables.Cell(str(row.rank))]
            cells += [tables.Cell(row.state, COLOURS.get(row.kind, row.kind))]
            cells += [tables.Cell(row.call, code=True), _bar(row.shares)]
            memory = "" if row.memory is None else f"{row.memory / 2**20:.0f} MiB"
            processor = "" if row.processor is None else f"{row.processor:.0f}%"
            body.append([*cells, *map(tables.Cell, (memory, processor, row.host, str(row.pid)))])
        if not shares:
            for line in (head, *body):
                del line[3]
        return head, body

    def __repr__(self) -> str:
        return "\n".join([self.summary, *tables.text(*self._table())])

    def _repr_html_(self) -> str:
        line = f"<div>{html.escape(self.summary)}</div>"
        table = tables.table(*self._table())
        moment, day = (time.strftime(form, self.time) for form in ("%H:%M:%S", "%Y-%m-%d %H:%M:%S"))
        if self.over:
            why = html.escape(self.over)
            note = f'<div class="note" title="{day}">last updated {moment}: {why}</div>'
            return tables.page(f'<div class="old">{line}{table}</div>', note, style=AGED)
        if self.next is None:
            return tables.page(line, table)
        news = f"no news since {day}: this kernel is busy, or has ended"
        note = (
            f'<div class="note two"><span class="live">updated {moment}</span>'
            f'<span class="silence">{news}</span></div>'
        )
        late = f"style='--late: {3 * self.next + 3:.0f}s'"
        return tables.page(
            f'<div {late}><div class="fresh">{line}{table}</div>{note}</div>', style=AGED
        )


# `--late` are the seconds after which the next update is overdue.
AGED = """
.tdl .old { opacity: 0.85; filter: grayscale(1); }
.tdl .fresh { animation: tdl-ages 0.5s var(--late) forwards; }
.tdl .two { display: grid; }
.tdl .two span { grid-area: 1 / 1; }
.tdl .live { animation: tdl-hides 0.1s var(--late) forwards; }
.tdl .silence { visibility: hidden; animation: tdl-shows 0.1s var(--late) forwards; }
@keyframes tdl-ages { to { opacity: 0.85; filter: grayscale(1); } }
@keyframes tdl-hides { to { visibility: hidden; } }
@keyframes tdl-shows { to { visibility: visible; } }
"""


def _bar(shares: Sequence[float]) -> tables.Cell:
    """Fractions as a bar (solid, hatched, empty), and in words below it."""
    words = [f"{100 * share:.0f}%" for share in shares]
    title = ", ".join(map(" ".join, zip(KINDS, words, strict=False)))
    parts = "".join(f'<i style="width:{word}"></i>' for word in words)
    bar = f'<div class="bar" role="img" title="{title}" aria-label="{title}">{parts}</div>'
    return tables.Cell(" / ".join(words), above=bar if words else "")


class Live:
    """A table that is kept up to date until another one is shown, or the kernel ends.

    `show` displays the first table, and returns what displays the next ones in its place.
    """

    def __init__(self, cluster, show: Callable, clock=time.monotonic):
        self.cluster, self.clock = cluster, clock
        self.ended, self.one_at_a_time = threading.Event(), threading.Lock()
        self.shown, self.at = None, clock()
        self.table = self._table()
        self.update = show(self.table)

    def _table(self) -> Table:
        table = Table(self.cluster, OVER.get(self.cluster.phase, ""))
        table.next = EVERY if table.busy else IDLE
        return table

    def look(self) -> None:
        """Called each second: update the table if it is time, or if something has happened."""
        with self.one_at_a_time:
            phase = self.cluster.phase
            if self.ended.is_set() or (self.table.over and self.table.over == OVER.get(phase)):
                return  # a stopped cluster may be started again
            sent = any(cell.pending() for cell in self.cluster.cells.now.values())
            due = self.clock() - self.at >= IDLE - EVERY / 2
            seen = phase, [engine.alive for engine in self.cluster.status()]
            changed, self.shown = seen != self.shown, seen
            if sent or due or self.table.busy or self.table.over or changed:
                self.at = self.clock()
                self.table = self._table()
                self.update(self.table)

    def end(self, why: str) -> None:
        """Say in the table why it is not updated any more."""
        with self.one_at_a_time:
            if not self.ended.is_set():
                self.ended.set()
                self.table.over = self.table.over or why
                self.update(self.table)

    def run(self) -> None:
        """Look each second until the end; what goes wrong is shown, not hidden."""
        failed = 0
        while not self.ended.wait(EVERY):
            try:
                self.look()
                failed = 0
            except Exception as error:  # for example, it was stopped at this moment
                failed += 1
                if failed == 3:
                    with contextlib.suppress(Exception):  # the page then says "no news"
                        self.end(f"it can't be updated: {type(error).__name__}: {error}")


def show(cluster) -> None:
    """Display a cluster: live in a notebook, as text elsewhere."""
    global _shown
    if getattr(get_ipython(), "kernel", None) is None:
        print(Table(cluster))
        return
    if _shown is not None:
        _shown.end("a newer view was shown")
    _shown = Live(cluster, lambda table: display(table, display_id=True).update)
    threading.Thread(target=_shown.run, name="cluster-view", daemon=True).start()
