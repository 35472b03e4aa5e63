"""`View`: what a notebook shows of a search while it runs, as HTML that is renewed.

The best set so far; the figures of merit by trial, and by epoch; all sets as parallel coordinates,
the best ones in colour; the newest trials; and what has gone wrong.
"""

from __future__ import annotations

import html
import time
from collections.abc import Mapping

from .drawing import by_epoch, captioned, curve, parallel, said, short, table
from .study import Study

ROWS = 8  # of the table, the newest trials
SECONDS = 1.0  # from one renewal of the display to the next


class View:
    """The display of a search, which is renewed at most once per second."""

    def __init__(self, study: Study, show=None, now=time.monotonic):
        if show is None:
            from IPython.display import display as show
        self.study, self.now, self.begun, self.notes = study, now, now(), []
        self.handle, self.shown = show(self, display_id=True), now()

    def announce(self, text: str, row: Mapping | None) -> None:
        if row is None:
            self.notes.append(text)
        self.watch()

    def watch(self) -> None:
        """Renew the display if it is time."""
        if self.now() - self.shown >= SECONDS:
            self.renew()

    def renew(self) -> None:
        self.shown = self.now()
        self.handle.update(self)

    def __repr__(self) -> str:
        best, done = self.study.best, len(self.study.finished)
        words = f"{done} of {self.study.trials} trials, {self.now() - self.begun:.0f} s"
        if best is None:
            number = len(self.study.front)
            return f"{words}; {number} on the Pareto front" if number else words
        return f"{words}; best {short(best.value)} (trial {best.number}): {said(best.params)}"

    def _repr_html_(self) -> str:
        rows, study = self.study.rows(), self.study
        parts = [
            f'<progress value="{len(rows) / study.trials:.3f}" max="1"></progress> '
            + html.escape(repr(self)),
            *map(html.escape, self.notes),
        ]
        values = [row["value"] for row in rows if row["state"] == "complete"]
        name, one = study.merits[0], len(study.merits) == 1
        drawn = [curve(values, study.higher[0], name)] if one and len(values) > 1 else []
        drawn.append(by_epoch(study.optuna.get_trials(deepcopy=False), name))
        parts.append(" ".join(drawn))
        if len(values) > 1:
            parts.append(parallel(study))
        names = study.space.names
        newest = [
            [
                row["number"],
                row["state"] if row["value"] is None else row["value"],
                *(row["params"].get(name, "") for name in names),
            ]
            for row in rows[-ROWS:]
        ]
        head = ["trial", ", ".join(study.merits), *names]
        parts.append(captioned("the newest trials", table(head, newest)))
        return "".join(f"<div>{part}</div>" for part in parts)
