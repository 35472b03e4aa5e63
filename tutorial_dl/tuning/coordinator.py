"""`Coordinator`: hands trials to whoever is free, and never waits for one of them.

    coordinator  rank 0: asks the sampler, keeps the study
    suggester    a rank that asks the sampler in its place; there may be some (suggesting.py)
    cell         the ranks that train one set of values on one fold; there are groups x folds of
                 them, of one size or of several

A free cell gets the next fold of a trial that has begun, or else the first fold of a new trial. So
the folds of a trial train at once while there are cells for all, and after each other if cells were
lost. A trial ends with its last fold, with the first fold that fails, or when it is pruned, which
the mean over its folds decides; cells that still train it are then told to stop.

With cells of several sizes, there is a set in store for each size. A small cell takes the set that
is the least work, and a large one the set that is the most, as far as that is known (costs.py).

The coordinator knows cells by number, suggesters by the numbers after those, and reaches them by a
*port*: `mpi_port.py` for ranks, `simulation.py` for a simulated clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from .costs import Costs
from .study import Study
from .suggesting import PATIENCE, Suggesting

GRACE = 30.0  # seconds after a deadline, within which a cell must answer or is lost
START = 600.0  # seconds within which the first cell must be ready
OVERLOOKED = 3  # times that a set may wait in store while another one is taken
WAIT = 0.2  # seconds between two looks at what has been lost


class Refused(ValueError):
    """No cell can train any set of values, so nothing was trained. The message says why."""


class Port:
    """How the coordinator reaches cells. Nothing here waits for a cell."""

    def now(self) -> float:
        """The time, in seconds."""
        raise NotImplementedError

    def send(self, cell: int, message: dict) -> None:
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


@dataclass
class Task:
    """A trial in training: one set of values, on each fold."""

    trial: Any
    values: dict
    waiting: deque  # folds that no cell has begun
    began: float
    results: dict[int, float] = field(default_factory=dict)  # fold -> figure of merit
    reports: dict[int, dict[int, float]] = field(default_factory=dict)  # epoch -> fold -> figure
    ranks: int = 1  # of the cell that began it
    ended: bool = False


@dataclass
class Busy:
    """What a cell trains, and since when."""

    task: Task
    fold: int
    since: float
    warned: bool = False


@dataclass
class Outcome:
    """What a search did: its wall time, and the share of it that cells trained for."""

    seconds: float
    utilisation: float
    cells: int
    lost: list[str]
    stopped: str | None = None
    spans: list[tuple[int, int, int, float, float]] = field(default_factory=list)
    """(cell, trial, fold, began, ended): what each cell trained when."""


class Coordinator:
    """Runs a study on cells.

    Args:
        study: The trials.
        port: The way to the cells.
        cells: How many there are.
        folds: Trainings per trial, whose mean is its figure of merit.
        deadline: Seconds that one training may take.
        tell: Called with a line of text, and the trial's row or None.
        ahead: Whether the next set is chosen while all cells are busy.
        watch: Called after each figure of merit by epoch.
        suggesters: How many ranks choose sets of values.
        sizes: Ranks of each cell; None: one each.
    """

    def __init__(
        self,
        study: Study,
        port: Port,
        cells: int,
        folds: int = 1,
        deadline: float = 3600.0,
        tell: Callable[[str, dict | None], None] = lambda text, row: None,
        ahead: bool = True,
        watch: Callable[[], None] = lambda: None,
        suggesters: int = 0,
        sizes: list[int] | None = None,
    ):
        self.study, self.port, self.folds, self.deadline = study, port, folds, deadline
        self.tell, self.watch, self.ahead, self.cells = tell, watch, ahead, cells
        self.free: deque[int] = deque()
        self.busy: dict[int, Busy] = {}
        self.dropped: dict[int, str] = {}  # cell -> why
        self.refused: dict[int, str] = {}  # cell -> why it can't train anything
        self.ready = False  # whether a cell has been
        self.unsaid: list[str] = []  # what has gone wrong before
        self.tasks: list[Task] = []  # trials in training
        self.suggesting = Suggesting(study, port, range(cells, cells + suggesters))
        self.store = self.suggesting.chosen  # trials that no cell has begun, with their sets
        self.again = study.waiting  # sets to try again, which only the study knows
        self.sizes = sizes or [1] * cells
        self.kinds: list[int] = []  # different sizes of cells, the least first
        self._see_sizes()
        self.since: float | None = None  # when a cell became free that has nothing to train
        self.costs, self.overlooked = Costs(study.space), Counter()
        self.finished = study.resumed
        self.spans: list[tuple] = []
        self.asking = 0.0  # seconds spent on suggestions

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
        for trial, _ in self.store:
            self.study.give_up(trial)
        if not self._left() and self.finished < self.study.trials:
            stopped = "no ranks are left"
        for cell in (*(set(range(self.cells)) - self.dropped.keys()), *self.suggesting.news):
            self.port.send(cell, {"what": "end"})
        seconds = ended - began
        used = sum(end - start for *_, start, end in self.spans)
        return Outcome(
            seconds=seconds,
            utilisation=used / (self.cells * seconds) if seconds > 0 else 0.0,
            cells=self.cells,
            lost=list(self.dropped.values()),
            stopped=stopped,
            spans=self.spans,
        )

    def _loop(self, began: float) -> None:
        heard, silent = False, set(range(self.cells))
        while self.finished < self.study.trials and self._left():
            self._hand_out()
            event = self.port.receive(0)
            if event is None and self._prepare():
                continue
            event = event or self.port.receive(WAIT)
            if event is not None:
                heard |= event[0] < self.cells
                silent.discard(event[0])
                self._heed(*event)
            gone = self.port.lost()
            while gone and (event := self.port.receive(0)) is not None:  # what they said before
                heard |= event[0] < self.cells
                silent.discard(event[0])
                self._heed(*event)
            for cell in gone:
                self._drop(cell, "its ranks were killed, or have run out of memory")
            self._check_deadlines()
            if silent and self.port.now() - began > START:
                if not heard:
                    raise RuntimeError(f"no ranks were ready to train within {START:.0f} s")
                for cell in silent:
                    self._drop(cell, f"it was not ready to train within {START:.0f} s")
                silent.clear()

    def _see_sizes(self) -> None:
        left = [cell for cell in range(self.cells) if cell not in self.dropped]
        self.kinds = sorted({self.sizes[cell] for cell in left})

    def _left(self) -> bool:
        """Whether any cell is left."""
        return any(cell not in self.dropped for cell in range(self.cells))

    # Handing out

    def _hand_out(self) -> None:
        for cell in list(self.free):
            task = self._begun_for(cell)
            if task is None:
                self._fill()
                if not self._left_to_begin() or not self.store:
                    continue
                trial, values = self._take(cell)
                task = Task(trial, values, deque(range(self.folds)), self.port.now())
                task.ranks = self.sizes[cell]
                self.tasks.append(task)
            self.free.remove(cell)
            fold = task.waiting.popleft()
            self.busy[cell] = Busy(task, fold, self.port.now())
            self.port.send(
                cell,
                {
                    "what": "train", "trial": task.trial.number, "fold": fold,
                    "values": task.values, "deadline": self.deadline,
                },
            )  # fmt: skip

    def _begun_for(self, cell: int) -> Task | None:
        """A trial whose next fold this cell can train. Its folds train on equally many ranks,
        unless no cell of that size is left."""
        for task in self.tasks:
            fits = task.ranks == self.sizes[cell] or task.ranks not in self.kinds
            if task.waiting and not task.ended and fits:
                return task
        return None

    def _left_to_begin(self) -> int:
        """How many more trials are to begin; those in store are among them."""
        return self.study.trials - self.finished - len(self.tasks)

    def _fill(self) -> None:
        """Have a set in store for each size of cells, unless suggesters are choosing them."""
        left = self._left_to_begin()
        if self.suggesting and not self.again:
            # One for each free cell, and one ahead by each suggester
            ahead = len(self.suggesting.news) + len(self.kinds) - 1
            self.suggesting.request(min(left, len(self.free) + ahead))
            return
        while len(self.store) < min(len(self.kinds), left):
            self.store.append(self._ask())

    def _take(self, cell: int) -> tuple:
        """Take a trial out of the store for a cell."""
        at, size = 0, self.sizes[cell]
        if len(self.kinds) > 1 and self.overlooked[self.store[0][0].number] < OVERLOOKED:
            work = self.costs.of([values for _, values in self.store])
            if work is not None:
                place = self.kinds.index(size) / (len(self.kinds) - 1) * (len(self.store) - 1)
                at = int(np.argsort(work, kind="stable")[round(place)])
        for trial, _ in list(self.store)[:at]:
            self.overlooked[trial.number] += 1
        found = self.store[at]
        del self.store[at]
        return found

    def _prepare(self) -> bool:
        """Choose sets while all cells are busy; False if there is none to choose."""
        if not self.ahead or self.free or not self.busy:
            return False
        before = len(self.store)
        self._fill()
        return len(self.store) > before

    def _ask(self) -> tuple:
        began = perf_counter()
        found = self.study.ask()
        self.asking += perf_counter() - began
        self.again = max(0, self.again - 1)
        self.suggesting.begun(*found)
        return found

    # Messages of cells

    def _heed(self, cell: int, message: dict) -> None:
        if cell in self.dropped:
            return
        if cell >= self.cells:
            if why := self.suggesting.heed(cell, message):
                self._drop(cell, why)
            return
        if message.get("note"):
            self.tell(f"cell {cell}: {message['note']}", None)
        if message["what"] == "ready":
            self.free.append(cell)
            self.ready = True
            self._say()
            return
        if message["what"] == "refused":
            self._refuse(cell, message["why"])
            return
        busy = self.busy.get(cell)
        if busy is None or busy.task.trial.number != message["trial"]:
            return
        if message["what"] == "report":
            self._report(busy, message["epoch"], message["value"])
        elif message["what"] == "ended":
            # Its answer may have waited here, which is no training
            ended = busy.since + message.get("seconds", np.inf)
            self._span(cell, self.busy.pop(cell), min(self.port.now(), ended))
            if message.get("ranks") and len(message["ranks"]) != self.sizes[cell]:  # some are lost
                self.sizes[cell] = len(message["ranks"])
                self._see_sizes()
            elif message.get("state") == "complete":
                self.costs.note(busy.task.values, ended - busy.since, self.sizes[cell])
            if message.get("gone"):
                self._drop(cell, message["gone"])
            else:
                self.free.append(cell)
            self._fold_ended(busy, message)

    def _refuse(self, cell: int, why: str) -> None:
        """A cell can't train anything. If none can, the search is wrong; else only its node is."""
        self.refused[cell] = why
        self._drop(cell, why)  # it is also told to end
        if len(self.refused) == self.cells:
            raise Refused(why)

    def _report(self, busy: Busy, epoch: int, value: float) -> None:
        task = busy.task
        if task.ended:
            return
        of = task.reports.setdefault(epoch, {})
        of[busy.fold] = value
        mean = float(np.mean(list(of.values()))) if len(of) == self.folds else np.nan
        if np.isfinite(mean) and self.study.prune(task.trial, epoch, mean):
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
            self._end(task, float(np.mean(values)), "complete", folds=values)

    def _end(self, task: Task, value: float | None, state: str, **about) -> None:
        """A trial ends: keep it, and stop the cells that still train it."""
        task.ended = True
        self.tasks.remove(task)
        seconds = self.port.now() - task.began
        about |= {"seconds": seconds, "ranks": task.ranks}
        row = self.study.tell(task.trial, value, state, **about)
        self.suggesting.note(task.trial.number)
        self.finished += 1
        for cell, busy in self.busy.items():
            if busy.task is task:
                self.port.send(cell, {"what": "stop", "trial": task.trial.number})
        self.tell(in_words(row, self.finished, self.study), row)

    # What does not answer

    def _check_deadlines(self) -> None:
        now = self.port.now()
        for cell, busy in list(self.busy.items()):
            if now - busy.since > self.deadline + 2 * GRACE:
                self._drop(cell, f"it did not answer {2 * GRACE:.0f} s after its deadline")
        if not self.free:
            self.since = None
        elif self.since is None:
            self.since = now
        for one in self.suggesting.late(self.since) if self.free else ():
            self._drop(one, f"it has chosen no set of values within {PATIENCE:.0f} s")

    def _drop(self, cell: int, why: str) -> None:
        if cell in self.dropped:
            return
        name = f"cell {cell}" if cell < self.cells else f"suggester {cell - self.cells}"
        self.dropped[cell] = f"{name} is lost: {why}"
        self.unsaid.append(self.dropped[cell])
        if self.ready:  # else all may be refused for one reason, which is said once
            self._say()
        self.port.drop(cell)
        self.suggesting.drop(cell)
        self._see_sizes()
        if cell in self.free:
            self.free.remove(cell)
        busy = self.busy.pop(cell, None)
        if busy is not None:
            self._span(cell, busy, self.port.now())
            self._fold_ended(busy, {"state": "failed", "why": why})

    def _say(self) -> None:
        for text in self.unsaid:
            self.tell(text, None)
        self.unsaid.clear()

    def _span(self, cell: int, busy: Busy, end: float) -> None:
        self.spans.append((cell, busy.task.trial.number, busy.fold, busy.since, end))


def in_words(row: dict, finished: int, study: Study) -> str:
    """A finished trial as one line."""
    values = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row["params"].items()
    )
    best = study.best
    so_far = "" if best is None else f"; best {best.value:.4g} (trial {best.number})"
    result = row["state"] if row["value"] is None else f"{row['value']:.4g}"
    if row["state"] == "pruned":
        result = f"pruned at {row['value']:.4g}" if row["value"] is not None else "pruned"
    folds = row.get("folds", ())
    if len(folds) > 1:
        result += f" (folds {', '.join(f'{value:.4g}' for value in folds)})"
    why = f": {row['why']}" if row["state"] == "failed" else ""
    return f"[{finished}/{study.trials}] trial {row['number']}: {result}{why}; {values}{so_far}"
