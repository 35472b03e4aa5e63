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
from collections.abc import Callable

from IPython import get_ipython
from IPython.display import display

from . import tables
from .rank_status import rows, summary

EVERY, IDLE = 1.0, 5.0  # seconds between updates, while a cell runs and otherwise
KINDS = ("computing", "talking", "waiting")
HEAD = ["rank", "state", "call", "memory", "processor", "host", "pid"]
SHARES = " / ".join(KINDS)
COLOURS = {"blocked": "bad", "dead": "bad", "halted": "odd", "silent": "odd", "gone": "idle"}

OVER = {"stopped": "the cluster was stopped", "left": "this notebook has left the cluster"}

_shown: Live | None = None  # one live table per kernel: the last one


class Table:
    """The state of a cluster at one moment; `over` says why it is not updated any more."""

    def __init__(self, cluster, over: str = ""):
        self.rows = rows(cluster)
        self.summary = summary(cluster, self.rows)
        self.over, self.time = over, time.localtime()
        self.next: float | None = None  # seconds until the next update; None: this is not live

    @property
    def busy(self) -> bool:
        """Whether an engine is in a cell, or may be."""
        return any(row.kind not in ("idle", "dead", "gone") for row in self.rows)

    def _columns(self) -> list[str]:
        some = any(row.shares for row in self.rows)
        return [*HEAD[:3], SHARES, *HEAD[3:]] if some else HEAD

    def __repr__(self) -> str:
        head, body = self._columns(), []
        for row in self.rows:
            parts = [" / ".join(tables.in_percent(row.shares))] if SHARES in head else []
            body.append([str(row.rank), row.state, row.call, *parts, *_figures(row)])
        return "\n".join([self.summary, *tables.text(head, body)])

    def _repr_html_(self) -> str:
        head, body = self._columns(), []
        for row in self.rows:
            state = tables.cell(row.state, COLOURS.get(row.kind, row.kind))
            call = tables.cell(row.call, code=True)
            bar = [tables.bar(row.shares, KINDS)] if SHARES in head else []
            rest = map(tables.cell, _figures(row))
            body.append([tables.cell(str(row.rank)), state, call, *bar, *rest])
        line, table = f"<div>{html.escape(self.summary)}</div>", tables.table(head, body)
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


def _figures(row) -> list[str]:
    memory = "" if row.memory is None else f"{row.memory / 2**20:.0f} MiB"
    processor = "" if row.processor is None else f"{row.processor:.0f}%"
    return [memory, processor, row.host, str(row.pid)]


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
            if sent or due or self.table.busy or self.table.over or self._changed(phase):
                self.at = self.clock()
                self.table = self._table()
                self.update(self.table)

    def _changed(self, phase: str) -> bool:
        alive = [engine.alive for engine in self.cluster.status()]
        before, self.shown = self.shown, (phase, alive)
        return before != self.shown

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


def _display(table: Table) -> Callable:
    return display(table, display_id=True).update


def show(cluster) -> None:
    """Display a cluster: live in a notebook, as text elsewhere."""
    global _shown
    if getattr(get_ipython(), "kernel", None) is None:
        print(Table(cluster))
        return
    if _shown is not None:
        _shown.end("a newer view was shown")
    _shown = Live(cluster, _display)
    threading.Thread(target=_shown.run, name="cluster-view", daemon=True).start()
