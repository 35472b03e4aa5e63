"""`Coordinator`: keeps a search's books, and hands trainings to whoever is free.

    coordinator  rank 0: keeps the study, and waits for nobody
    cell         the ranks that train one set of values on one fold; there are groups x folds of
                 them
    leader       a rank of a cell, which chooses sets of values (leader.py)

A free cell gets the next fold of a trial that has begun, or else its leader chooses the set of a
new trial, whose folds then go to this cell and to others that are free. So the folds of a trial
train at once while there are cells for all, and after each other if cells were lost. A trial ends
with its last fold, with the first fold that fails, or when it is pruned, which the mean over its
folds decides; cells that still train it are then told to stop.

The coordinator knows cells by number, and reaches them by a *port*: `mpi_port.py` for ranks,
`notebook.py` for engines, `simulation.py` for a simulated clock.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .drawing import said, short
from .study import Study

GRACE = 30.0  # seconds after a deadline, within which a cell must answer or is lost
START = 600.0  # seconds within which a cell must be ready, or have chosen a set
WAIT = 0.2  # seconds between two looks at what has been lost
NUMBER = re.compile(r"\d[\d.e+-]*")


class Refused(ValueError):
    """No cell can train any set of values, so nothing was trained. The message says why."""


class Port:
    """How the coordinator reaches cells. Nothing here waits for a cell."""

    def now(self) -> float:
        """The time, in seconds."""
        raise NotImplementedError

    def send(self, cell: int, message: dict) -> None:
        """Send to a cell; a request to choose goes to one of its ranks."""
        raise NotImplementedError

    def receive(self, seconds: float) -> tuple[int, dict] | None:
        """The next message of a cell; None if there is none within `seconds`."""
        raise NotImplementedError

    def lost(self) -> list[int]:
        """Cells that no longer have any rank; each is told once."""
        raise NotImplementedError

    def drop(self, cell: int) -> None:
        """Never reach for this cell again."""
        raise NotImplementedError


class Link:
    """A rank's way to the coordinator; by this one nothing comes."""

    ends_with_interrupt = True  # whether Ctrl-C ends the search on this rank

    def send(self, message: dict) -> None:
        raise NotImplementedError

    def messages(self) -> list[dict]:
        """What the coordinator has sent since the last call."""
        return []

    def is_broken(self) -> bool:
        """Whether the coordinator's process is known to have ended."""
        return False

    def close(self) -> None: ...


@dataclass(eq=False)
class Task:
    """A trial in training: one set of values, on each fold."""

    trial: Any
    values: dict
    waiting: deque  # folds that no cell has begun
    began: float
    ranks: int  # of the cell that began it
    results: dict[int, Any] = field(default_factory=dict)  # fold -> figure of merit, or several
    reports: dict[int, dict[int, Any]] = field(default_factory=dict)  # epoch -> fold -> the same
    ended: bool = False


@dataclass
class Busy:
    """What a cell trains, and since when."""

    task: Task
    fold: int
    since: float


@dataclass
class Outcome:
    """What a search did: its wall time, and the share of it that cells trained for."""

    seconds: float
    utilisation: float
    cells: int
    lost: list[str]
    stopped: str | None = None
    spans: list[tuple[int, int, int, float, float]] = field(default_factory=list)
    """(cell, trial, fold, began, ended): what each cell trained when, in seconds of the search."""


class Coordinator:
    """Runs a study on cells.

    Args:
        study: The trials.
        port: The way to the cells.
        cells: How many there are.
        folds: Trainings per trial, whose mean is its figure of merit.
        deadline: Seconds that one training may take.
        announce: Called with a line of text, and the trial's row or None.
        watch: Called after each figure of merit by epoch.
        ranks: Ranks of each cell.
    """

    def __init__(
        self,
        study: Study,
        port: Port,
        cells: int,
        folds: int = 1,
        deadline: float = 3600.0,
        announce: Callable[[str, dict | None], None] = lambda text, row: None,
        watch: Callable[[], None] = lambda: None,
        ranks: int = 1,
    ):
        self.study, self.port, self.folds, self.deadline = study, port, folds, deadline
        self.announce, self.watch, self.cells = announce, watch, cells
        self.free: deque[int] = deque()
        self.known = [0] * cells  # events that each cell's leader knows (`Study.news`)
        self.ranks = [ranks] * cells
        self.choosing: dict[int, tuple[int, float]] = {}  # cell -> place (`Seen`), since when
        self.places, self.unused = 0, deque()  # places so far, and those of leaders that were lost
        self.busy: dict[int, Busy] = {}
        self.tasks: dict[Task, None] = {}  # trials in training, in their order
        self.open: deque[Task] = deque()  # those with folds that no cell has begun
        self.dropped: dict[int, str] = {}  # cell -> why
        self.refused: dict[int, str] = {}  # cell -> why it can't train anything
        self.silent = set(range(cells))  # cells that were not heard yet
        self.ready = False  # whether a cell has been
        self.unsaid: list[str] = []  # what has gone wrong before
        self.noted: set[str] = set()  # notes that were said, without their numbers
        self.finished = study.resumed
        self.spans: list[tuple] = []

    def run(self) -> Outcome:
        """Search until all trials have ended. Ctrl-C ends it earlier, and keeps what is done."""
        began, stopped = self.port.now(), None
        try:
            self._loop(began)
        except KeyboardInterrupt:
            stopped = "interrupted"
        ended = self.port.now()
        self._say()
        for cell, busy in self.busy.items():
            self._span(cell, busy, ended)
        for task in self.tasks:
            self.study.give_up(task.trial)
        if len(self.dropped) == self.cells and self.finished < self.study.trials:
            stopped = "no ranks are left"
        for cell in set(range(self.cells)) - self.dropped.keys():
            self.port.send(cell, {"what": "end"})
        seconds = ended - began
        used = sum(end - start for *_, start, end in self.spans)
        return Outcome(
            seconds=seconds,
            utilisation=used / (self.cells * seconds) if seconds > 0 else 0.0,
            cells=self.cells,
            lost=list(self.dropped.values()),
            stopped=stopped,
            spans=[(*what, start - began, end - began) for *what, start, end in self.spans],
        )

    def _loop(self, began: float) -> None:
        look = began
        while self.finished < self.study.trials and len(self.dropped) < self.cells:
            self._hand_out()
            if (event := self.port.receive(WAIT)) is not None:
                self._heed(*event)
            if self.port.now() >= look:
                self._look(began)
                look = self.port.now() + WAIT

    # Handing out

    def _hand_out(self) -> None:
        while self.free:
            while self.open and (self.open[0].ended or not self.open[0].waiting):
                self.open.popleft()
            if not self.open and self.study.again and self._left_to_begin() > 0:
                self._begin(*self.study.ask(), self.free[0])
            if self.open:
                self._train(self.free.popleft(), self.open[0])
            elif self._left_to_begin() > 0 and len(self.free) > (self.folds - 1) * len(
                self.choosing
            ):  # else the free cells wait for folds of sets that are in choice
                self._let_choose(self.free.popleft())
            else:
                return

    def _left_to_begin(self) -> int:
        """How many more trials are to be chosen."""
        return self.study.trials - self.finished - len(self.tasks) - len(self.choosing)

    def _let_choose(self, cell: int) -> None:
        if not self.unused:
            self.unused.append(self.places)
            self.places += 1
        place, others = self.unused.popleft(), len(self.choosing)
        self.choosing[cell] = place, self.port.now()
        self.port.send(
            cell,
            {
                "what": "choose", "from": self.known[cell],
                "news": self.study.news(self.known[cell]), "before": self.study.before,
                "place": place, "others": others,
            },
        )  # fmt: skip

    def _begin(self, trial: Any, values: dict, cell: int) -> None:
        folds = deque(range(self.folds))
        task = Task(trial, values, folds, self.port.now(), self.ranks[cell])
        self.tasks[task] = None
        self.open.append(task)

    def _train(self, cell: int, task: Task) -> None:
        fold = task.waiting.popleft()
        self.busy[cell] = Busy(task, fold, self.port.now())
        self.port.send(
            cell,
            {
                "what": "train", "trial": task.trial.number, "fold": fold,
                "values": task.values, "deadline": self.deadline,
            },
        )  # fmt: skip

    # Messages of cells

    def _heed(self, cell: int, message: dict) -> None:
        self.silent.discard(cell)
        if cell in self.dropped:
            return
        self.known[cell] = message.get("known", self.known[cell])
        if message.get("note"):
            self.announce(f"cell {cell}: {message['note']}", None)
        for note in message.get("notes", ()):
            if (kind := NUMBER.sub("", note)) not in self.noted:
                self.noted.add(kind)
                self.announce(f"note (said once), trial {message['trial']}: {note}", None)
        if message["what"] == "ready":
            self._choose_no_more(cell)
            if cell not in self.busy and cell not in self.free:
                self.free.append(cell)
            self.ready = True
            self._say()
        elif message["what"] == "refused":
            self._refuse(cell, message["why"])
        elif message["what"] == "chosen":
            if self.choosing.pop(cell, None):
                values = message["values"]
                self._begin(self.study.begin(values), values, cell)
                self.free.appendleft(cell)
        elif message["what"] == "failed":
            self._drop(cell, message["why"])
        elif (busy := self.busy.get(cell)) and busy.task.trial.number == message["trial"]:
            if message["what"] == "report":
                self._report(busy, message["epoch"], message["value"])
            elif message["what"] == "ended":
                self._ended(cell, busy, message)

    def _ended(self, cell: int, busy: Busy, message: dict) -> None:
        # Its answer may have waited here, which is no training
        ended = busy.since + message.get("seconds", np.inf)
        self._span(cell, self.busy.pop(cell), min(self.port.now(), ended))
        self.ranks[cell] = len(message.get("ranks", ())) or self.ranks[cell]  # some may be lost
        if message.get("gone"):
            self._drop(cell, message["gone"])
        else:
            self.free.append(cell)
        self._fold_ended(busy, message)

    def _choose_no_more(self, cell: int) -> None:
        if cell in self.choosing:
            place, _ = self.choosing.pop(cell)
            self.unused.append(place)

    def _refuse(self, cell: int, why: str) -> None:
        """A cell can't train anything. If none can, the search is wrong; else only its node is."""
        self.refused[cell] = why
        self._drop(cell, why)  # it is also told to end
        if len(self.refused) == self.cells:
            raise Refused(why)

    def _report(self, busy: Busy, epoch: int, value: float | list[float]) -> None:
        task = busy.task
        if task.ended:
            return
        of = task.reports.setdefault(epoch, {})
        of[busy.fold] = value
        mean = np.mean(list(of.values()), 0).tolist() if len(of) == self.folds else np.nan
        if np.isfinite(mean).all() and self.study.prune(task.trial, epoch, mean):
            self._end(task, mean, "pruned", why=f"pruned after epoch {epoch}")
        self.watch()

    def _fold_ended(self, busy: Busy, message: dict) -> None:
        task = busy.task
        if task.ended:
            return
        if message["state"] != "complete":
            fold = f"fold {busy.fold}: " if self.folds > 1 else ""
            self._end(task, None, "failed", why=fold + message["why"])
            return
        task.results[busy.fold] = message["value"]
        if len(task.results) == self.folds:
            values = [task.results[fold] for fold in range(self.folds)]
            self._end(task, np.mean(values, 0).tolist(), "complete", folds=values)

    def _end(self, task: Task, value: Any, state: str, **about) -> None:
        """A trial ends: keep it, and stop the cells that still train it."""
        task.ended = True
        del self.tasks[task]
        seconds = self.port.now() - task.began
        row = self.study.tell(task.trial, value, state, **about, seconds=seconds, ranks=task.ranks)
        self.finished += 1
        for cell, busy in self.busy.items():
            if busy.task is task:
                self.port.send(cell, {"what": "stop", "trial": task.trial.number})
        self.announce(in_words(row, self.finished, self.study), row)

    # What does not answer

    def _look(self, began: float) -> None:
        """Drop the cells that are lost, or answer no more."""
        gone, now = self.port.lost(), self.port.now()
        while gone and (event := self.port.receive(0)) is not None:  # what they said before
            self._heed(*event)
        for cell in gone:
            self._drop(cell, "its ranks were killed, or have run out of memory")
        for cell, busy in list(self.busy.items()):
            if now - busy.since > self.deadline + 2 * GRACE:
                self._drop(cell, f"it did not answer {2 * GRACE:.0f} s after its deadline")
        for cell, (_, since) in list(self.choosing.items()):
            if now - since > START:
                self._drop(cell, f"it has chosen no set of values within {START:.0f} s")
        if self.silent and now - began > START:
            if len(self.silent) == self.cells:
                raise RuntimeError(f"no ranks were ready to train within {START:.0f} s")
            for cell in self.silent:
                self._drop(cell, f"it was not ready to train within {START:.0f} s")
            self.silent.clear()

    def _drop(self, cell: int, why: str) -> None:
        if cell in self.dropped:
            return
        self.dropped[cell] = f"cell {cell} is lost: {why}"
        self.unsaid.append(self.dropped[cell])
        if self.ready:  # else all may be refused for one reason, which is said once
            self._say()
        self.port.drop(cell)
        self._choose_no_more(cell)
        if cell in self.free:
            self.free.remove(cell)
        busy = self.busy.pop(cell, None)
        if busy is not None:
            self._span(cell, busy, self.port.now())
            self._fold_ended(busy, {"state": "failed", "why": why})

    def _say(self) -> None:
        for text in self.unsaid:
            self.announce(text, None)
        self.unsaid.clear()

    def _span(self, cell: int, busy: Busy, end: float) -> None:
        self.spans.append((cell, busy.task.trial.number, busy.fold, busy.since, end))


def in_words(row: dict, finished: int, study: Study) -> str:
    """A finished trial as one line."""
    best = study.best
    so_far = "" if best is None else f"; best {best.value:.4g} (trial {best.number})"
    result = row["state"] if row["value"] is None else short(row["value"])
    if row["state"] == "pruned" and row["value"] is not None:
        result = f"pruned at {result}"
    if len(folds := row.get("folds", ())) > 1:
        result += f" (folds {', '.join(map(short, folds))})"
    why = f": {row['why']}" if row["state"] == "failed" else ""
    about = f"{result}{why}; {said(row['params'])}{so_far}"
    return f"[{finished}/{study.trials}] trial {row['number']}: {about}"
