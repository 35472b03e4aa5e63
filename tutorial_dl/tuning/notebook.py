"""A search from a notebook: trainings go to groups of a cluster's engines.

    from tutorial_dl import cluster, tuning
    c = cluster.start(n=4)
    found = tuning.tune(c, "space.toml", groups=4, trials=30, model="my_file:build",
                        data="my_file:load", epochs=5, merit="val_accuracy")
    found.best, found.study, found.plot()

The notebook coordinates, so no engine is needed for that. Meanwhile it shows how far it is
(live_view.py). The stop button ends the search and keeps what is
done; with `file=...`, a later call with `resume=True` goes on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config import SEARCH, RunConfig
from . import figures, on_engine
from .coordinator import Coordinator, Outcome, Port
from .drawing import Drawing, parallel
from .live_view import View
from .report import summary
from .search import GONE, Search
from .space import Space
from .study import Study, row_of

LOOK = 0.02  # seconds between two looks at what has been answered
STOP = 20.0  # seconds for engines to end what they train
BEGIN = 120.0  # seconds for engines to make their cells


class EnginesPort(Port):
    """Cells of a cluster's engines: `members` are the ranks of each.

    A task is a function called on each engine of a cell; its first rank's answer counts.
    """

    def __init__(self, client, members: list[list[int]]):
        self.client, self.members = client, dict(enumerate(map(list, members)))
        self.begun: dict[int, dict[int, Any]] = {}  # cell -> rank -> AsyncResult
        self.events: list[tuple[int, dict]] = []
        self.reported: dict[int, int] = {}  # cell -> epochs that were reported
        self.tasks: dict[int, dict] = {}
        self.choosing: dict[int, Any] = {}  # cell -> AsyncResult
        self.gone: list[int] = []

    def now(self) -> float:
        return time.monotonic()

    def send(self, cell: int, message: dict) -> None:
        there = [rank for rank in self.members.get(cell, ()) if rank in self.client.ids]
        if message["what"] not in ("train", "choose"):  # stop, or the end of the search
            if cell in self.begun:
                self.interrupt(cell)
        elif not there:
            self.gone.append(cell)
        elif message["what"] == "choose":
            self.choosing[cell] = self.client[there[0]].apply_async(on_engine.choose, message)
        else:
            self.tasks[cell], self.reported[cell] = message, 0
            self.begun[cell] = {
                rank: self.client[rank].apply_async(on_engine.train, message) for rank in there
            }

    def interrupt(self, cell: int) -> None:
        """Make the engines of a cell end their training, unless they have."""
        left = [rank for rank, asked in self.begun[cell].items() if not asked.ready()]
        if left:
            with suppress(Exception):  # they died
                self.client.send_signal(signal.SIGINT, targets=left, block=False)

    def receive(self, seconds: float) -> tuple[int, dict] | None:
        end = time.monotonic() + seconds
        while True:
            for cell in list(self.begun):
                self._look(cell)
            for cell in [cell for cell, asked in self.choosing.items() if asked.ready()]:
                try:
                    answer = self.choosing.pop(cell).get(0)
                except Exception:  # the engine died; others of the cell may be left
                    answer = {"what": "ready", "known": 0}
                self.events.append((cell, answer))
            if self.events:
                return self.events.pop(0)
            if time.monotonic() >= end:
                return None
            time.sleep(LOOK)

    def _look(self, cell: int) -> None:
        asked, task = self.begun[cell], self.tasks[cell]
        first = next(iter(asked.values()))
        reports = self.client.metadata[first.msg_ids[0]]["data"].get("reports", {})
        for epoch in sorted(reports)[self.reported[cell] :]:
            report = {"what": "report", "trial": task["trial"], "epoch": epoch}
            self.events.append((cell, report | {"value": reports[epoch]}))
        self.reported[cell] = len(reports)
        if not all(one.ready() for one in asked.values()):
            return
        del self.begun[cell]
        answers, why = [], "no engine has answered"
        for one in asked.values():
            try:
                answers.append(one.get(0))
            except Exception as error:  # an engine that died, or an error of ours
                why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if answers:
            self.members[cell] = answers[0]["ranks"]
            self.events.append((cell, answers[0]))
        else:
            ended = {"what": "ended", "trial": task["trial"], "fold": task["fold"], "gone": why}
            self.events.append((cell, ended | {"state": "failed", "why": why}))

    def lost(self) -> list[int]:
        found, self.gone = self.gone, []  # the request of an engine that dies ends with an error
        return found

    def drop(self, cell: int) -> None:
        self.members.pop(cell, None)

    def settle(self) -> None:
        """Wait until no engine trains any more, at most `STOP` seconds."""
        end = time.monotonic() + STOP
        while time.monotonic() < end:
            if all(one.ready() for of in self.begun.values() for one in of.values()):
                return
            time.sleep(LOOK)


class Found:
    """What a search has found.

    Attributes:
        study: The trials (study.py); `study.optuna` is Optuna's study, for its plots.
        outcome: Seconds, utilisation, what was lost (coordinator.py).
        best: The best set of values; None if no trial was completed, or if there are several
            figures of merit: `front` has the best ones.
        value: Its figure of merit.
        trials: All trials that have ended, as dicts. `front`: those of the Pareto front; of one
            figure of merit, the best.
    """

    def __init__(self, search: Search, study: Study, outcome: Outcome):
        self.search, self.study, self.outcome = search, study, outcome
        best = study.best
        self.best = None if best is None else dict(best.params)
        self.value = None if best is None else best.value
        self.trials, self.front = study.rows(), [row_of(trial) for trial in study.front]

    def config(self, trial: int | None = None) -> RunConfig:
        """The options of the best set, or of that of a trial, by its number.

        `Path("run.toml").write_text(found.config().toml())` writes them for `train --config`.
        """
        from .options import config_of

        sets = {row["number"]: row["params"] for row in self.trials} | {None: self.best}
        if sets.get(trial) is None:
            numbers = ", ".join(str(row["number"]) for row in self.front)
            raise ValueError(
                f"there is no best trial, or none of this number: give one of the front ({numbers})"
                if numbers else "no trial was completed"
            )  # fmt: skip
        return config_of(self.search.base, sets[trial])

    def timeline(self):
        """A figure of what each cell trained when."""
        return figures.timeline(self.outcome, self.trials)

    def importances(self):
        """A figure of how much each parameter matters (`study.importances()` has the numbers)."""
        return figures.importances(self.study)

    def plot(self) -> Drawing:
        """All sets of values as lines over an axis per parameter, the best ones in orange."""
        return Drawing(parallel(self.study))

    def __repr__(self) -> str:
        return summary(self.study, self.outcome)


def tune(
    c,
    space: Space | Mapping | str | Path,
    *,
    groups: int | None = None,
    file: Path | str | None = None,
    resume: bool = False,
    show=None,
    **options,
) -> Found:
    """Search on the engines of a cluster.

    Args:
        c: The cluster (`cluster.start`).
        space: A Space, its tables as dicts, or the name of a TOML file.
        groups: Sets of values to train at once; None: as many as there are engines for.
        file: Where the study is kept; `resume`: go on with it.
        show: IPython's `display`, or what takes its place.
        options: The other options of `tune` on the command line, by name: of the search (sampler,
            trials, folds, merit, maximise, directions, pruner, deadline, retry:
            docs/tuning.md), and those of `train` for all trainings: model="my_file:build",
            epochs=5.

    Raises:
        ValueError: In one line, if these do not fit together, before anything is trained.
    """
    if isinstance(space, Mapping):
        space = Space.of(space)
    elif not isinstance(space, Space):
        space = Space.read(space)
    for name in GONE.keys() & options.keys():
        raise ValueError(f"{name} is gone: {GONE[name]}")
    given = {name: options.pop(name) for name in SEARCH.keys() & options.keys()}
    given["groups"] = max(1, c.n // given.get("folds", 1)) if groups is None else groups
    file = None if file is None else Path(file)
    search = Search(space, RunConfig.of(**options), file, resume, **given)
    if c.n < search.cells:
        raise ValueError(
            f"{search.groups} groups x {search.folds} folds need {search.cells} engines, the "
            f"cluster has {c.n}"
        )
    each = c.n // search.cells  # some engines may be left over
    members = search.members(each, 0)
    search.base.check()
    search.check(each)
    with search.study() as study:  # after an error, its file stays unless it is new and empty
        # As a cell: teams that have failed in an earlier one recover
        c.run(on_engine.begin, search, members, timeout=BEGIN)
        said = c.run(on_engine.check)
        port = EnginesPort(c.client, members)
        port.events = [(cell, said[ranks[0]]) for cell, ranks in enumerate(members)]
        view = View(study, show)
        try:
            outcome = Coordinator(
                study, port, search.cells, search.folds, search.deadline, view.announce, view.watch,
                each,
            ).run()  # fmt: skip
        except BaseException:
            for cell in list(port.begun):
                port.interrupt(cell)
            raise
        port.settle()
        view.renew()
    return Found(search, study, outcome)
