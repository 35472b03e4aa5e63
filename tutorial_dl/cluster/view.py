"""A table of what each engine of a cluster is doing: text in a terminal, live in a notebook.

Nothing here waits for a busy engine: engines are asked on their control channel
(engine_probe.py), and the operating system about processes of this node.
"""

from __future__ import annotations

import contextlib
import html
import threading
import time
from typing import NamedTuple

import psutil
from IPython import get_ipython
from IPython.display import display

from .running_cell import BLOCKED

EVERY, SHOWN_FOR = 1.0, 300.0  # seconds
HEAD = ("rank", "host", "pid", "state", "call", "memory", "processor")
COLOURS = {"running": "#2e7d32", "blocked": "#c62828", "stopped": "#b26a00", "dead": "#c62828"}

_shown: Live | None = None  # one live table per kernel: the last one


class Row(NamedTuple):
    """One engine.

    `state` is "idle"; "running" a cell; "blocked" in an MPI call that can't be interrupted;
    "stopped" by a signal; "dead"; or "silent": compiled code keeps it from answering.
    """

    rank: int
    host: str
    pid: int
    state: str
    call: str  # the expression in the cell that it is in
    memory: int | None  # resident bytes; None if unknown
    processor: float | None  # percent of one core; None if unknown

    def cells(self) -> list[str]:
        memory = "" if self.memory is None else f"{self.memory / 2**20:.0f} MiB"
        processor = "" if self.processor is None else f"{self.processor:.0f}%"
        return [str(self.rank), self.host, str(self.pid), self.state, self.call, memory, processor]


def rows(cluster, seconds: float = 0.3) -> list[Row]:
    """The state of every engine; waits at most about `seconds` for answers."""
    status = cluster.status()
    cells = cluster.cells
    alive = [engine.rank for engine in status if engine.alive]
    codes = {rank: cell.code for rank, cell in cells.now.items()}
    answers = cells.asking.ask(alive, codes, seconds) if alive else {}
    table = []
    for engine, (_, process, *_) in zip(status, cluster.places, strict=True):
        doing = answers.get(engine.rank)
        state, call, memory, processor = "silent", "", None, None
        if doing is not None:
            state = "blocked" if doing.blocked > BLOCKED else doing.state
            call = doing.where() if doing.state == "running" else ""
            memory, processor = doing.memory or None, doing.processor if doing.memory else None
        with contextlib.suppress(psutil.Error):
            if process is not None and engine.alive:
                memory = process.memory_info().rss
                state = "stopped" if process.status() == psutil.STATUS_STOPPED else state
        if not engine.alive:
            first = engine.rank in cells.deaths.first and cluster.connected
            state, call = "dead", cells.deaths.how if first else ""
            memory, processor = None, None
        table.append(Row(engine.rank, engine.host, engine.pid, state, call, memory, processor))
    return table


class Table:
    """The state of a cluster at one moment."""

    def __init__(self, cluster):
        self.rows = rows(cluster)
        alive = sum(row.state != "dead" for row in self.rows)
        self.summary = f"Cluster: {alive} of {cluster.n} engines alive"

    def __repr__(self) -> str:
        table = [HEAD, *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, each, widths)).rstrip() for each in table]
        return "\n".join([self.summary, *lines])

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        head = "".join(f"<th {left}>{name}</th>" for name in HEAD)
        body = ""
        for row in self.rows:
            cells = [html.escape(cell) for cell in row.cells()]
            cells[3] = f"<b style='color:{COLOURS.get(row.state, 'inherit')}'>{cells[3]}</b>"
            cells[4] = f"<code>{cells[4]}</code>" if cells[4] else ""
            body += "<tr>" + "".join(f"<td {left}>{cell}</td>" for cell in cells) + "</tr>"
        return f"<div>{self.summary}</div><table><tr>{head}</tr>{body}</table>"


class Live:
    """A table that a thread keeps up to date for SHOWN_FOR seconds, or until the next is shown."""

    def __init__(self, cluster):
        self.cluster, self.over = cluster, threading.Event()
        self.handle = display(Table(cluster), display_id=True)
        threading.Thread(target=self._refresh, name="cluster-view", daemon=True).start()

    def _refresh(self) -> None:
        end = time.monotonic() + SHOWN_FOR
        while not self.over.wait(EVERY) and time.monotonic() < end:
            with contextlib.suppress(OSError):  # stopped at this moment
                self.handle.update(Table(self.cluster))
            if not self.cluster.connected:
                break  # the update before was the last: all dead


def show(cluster) -> None:
    """Display a cluster: live in a notebook, as text elsewhere."""
    global _shown
    if getattr(get_ipython(), "kernel", None) is None:
        print(Table(cluster))
        return
    if _shown is not None:
        _shown.over.set()
    _shown = Live(cluster)
