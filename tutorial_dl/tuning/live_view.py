"""`View`: what a notebook shows of a search while it runs, as HTML that is renewed.

The best set so far; the figures of merit by trial, and by epoch; all sets as parallel coordinates,
the best ones in colour; the newest trials; and what has gone wrong.
"""

from __future__ import annotations

import html
import time
from collections.abc import Mapping

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from .space import Space, choices_of
from .study import Study

ROWS = 8  # of the table, the newest trials
SECONDS = 1.0  # from one renewal of the display to the next
WIDTH, HEIGHT = 360, 120  # pixels, of the curve
GAP, TOP, TALL = 96, 18, 130  # between two axes of the coordinates; above them; their height
NONE = -0.15  # the place of what does not exist, below its axis
# Letters stay readable on lines, also in JupyterLab's dark theme
HALO = 'stroke="var(--jp-layout-color0, white)" stroke-width="3" paint-order="stroke"'
GOOD = 0.2  # the share of sets in colour
BEST, GOOD_ONES, OTHERS = "#E69F00", "#2C8CCB", "#9998"  # colours of lines


class Drawing:
    """A picture as HTML, which a notebook shows if it is a cell's value."""

    def __init__(self, page: str):
        self.page = page

    def _repr_html_(self) -> str:
        return self.page


class View:
    """The display of a search, which is renewed at most once per second."""

    def __init__(self, study: Study, show=None, now=time.monotonic):
        if show is None:
            from IPython.display import display as show
        self.study, self.now, self.begun, self.notes = study, now, now(), []
        self.handle, self.shown = show(self, display_id=True), now()

    def tell(self, text: str, row: Mapping | None) -> None:
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
        best = self.study.best
        said = "" if best is None else f"; best {best.value:.6g} with {dict(best.params)}"
        done = len(self.study.finished)
        return f"{done} of {self.study.trials} trials, {self.now() - self.begun:.0f} s{said}"

    def _repr_html_(self) -> str:
        rows = self.study.rows()
        share = len(rows) / self.study.trials
        parts = [f'<progress value="{share:.3f}" max="1"></progress> {html.escape(repr(self))}']
        parts += [html.escape(note) for note in self.notes]
        values = [row["value"] for row in rows if row["state"] == "complete"]
        drawn = [curve(values, self.study.maximise)] if len(values) > 1 else []
        drawn.append(by_epoch(self.study.optuna.get_trials(deepcopy=False)))
        parts.append(" ".join(drawn))
        if len(values) > 1:
            parts.append(parallel(rows, self.study.space, self.study.maximise))
        parts.append(newest(rows, self.study.space.names))
        return "".join(f"<div>{part}</div>" for part in parts)


def newest(rows: list[dict], names: list[str]) -> str:
    """The newest trials as HTML."""
    head = ["trial", "result", *names]
    lines = []
    for row in rows[-ROWS:]:
        result = row["state"] if row["value"] is None else f"{row['value']:.5g}"
        values = [row["params"].get(name, "") for name in names]
        texts = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
        lines.append([str(row["number"]), result, *texts])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in line) + "</tr>"
        for line in lines
    )
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    return f'<div style="overflow-x: auto"><table><tr>{heads}</tr>{body}</table></div>'


def curve(values: list[float], maximise: bool) -> str:
    """Figures of merit by trial as dots, and the best so far as a line, in SVG."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1
    best, so_far = [], values[0]
    for value in values:
        so_far = max(so_far, value) if maximise else min(so_far, value)
        best.append(so_far)

    def at(i: int, value: float) -> tuple[float, float]:
        x = 8 + (WIDTH - 16) * i / (len(values) - 1)
        return x, HEIGHT - 8 - (HEIGHT - 16) * (value - low) / (high - low)

    dots = "".join(
        '<circle cx="{:.1f}" cy="{:.1f}" r="2.5" fill="#2C8CCB"/>'.format(*at(i, value))
        for i, value in enumerate(values)
    )
    line = " ".join("{:.1f},{:.1f}".format(*at(i, value)) for i, value in enumerate(best))
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="figure of merit by trial">'
        f'<polyline points="{line}" fill="none" stroke="#E69F00" stroke-width="2"/>{dots}'
        f'<g font-size="10" fill="currentColor">{text(2, 10, _short(high), HALO)}'
        f"{text(2, HEIGHT - 2, _short(low), HALO)}</g></svg>"
    )


def by_epoch(trials: list[FrozenTrial]) -> str:
    """Figures of merit by epoch, a line per trial: those in training in orange, with their number.

    It is empty if no trial has reported twice.
    """
    lines = [(t, sorted(t.intermediate_values.items())) for t in trials]
    lines = [(trial, steps) for trial, steps in lines if len(steps) > 1]
    if not lines:
        return ""
    values = [value for _, steps in lines for _, value in steps]
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1
    first = min(steps[0][0] for _, steps in lines)
    last = max(steps[-1][0] for _, steps in lines)
    parts = [f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" font-size="10" ']
    parts.append('aria-label="figure of merit by epoch" fill="currentColor">')
    lines.sort(key=lambda one: one[0].state == TrialState.RUNNING)  # those are drawn last
    for trial, steps in lines:
        at = [
            (8 + (WIDTH - 40) * (epoch - first) / (last - first),
             HEIGHT - 8 - (HEIGHT - 16) * (value - low) / (high - low))
            for epoch, value in steps
        ]  # fmt: skip
        runs = trial.state == TrialState.RUNNING
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{BEST if runs else OTHERS}" '
            f'stroke-width="{2 if runs else 1}"/>'
        )
        if runs:
            parts.append(text(at[-1][0] + 3, at[-1][1] + 4, trial.number, HALO))
    parts.append(text(2, 10, _short(high), HALO))
    parts.append(text(2, HEIGHT - 2, _short(low), HALO))
    return "".join(parts) + "</svg>"


def parallel(rows: list[Mapping], space: Space, maximise: bool) -> str:
    """All complete trials as lines over an axis per parameter and one of the figure of merit, SVG.

    The best line is orange and above the others, the next ones are blue. Where a parameter does not
    exist, a line passes below its axis.
    """
    done = [row for row in rows if row["state"] == "complete"]
    sign = -1 if maximise else 1
    done.sort(key=lambda row: sign * row["value"], reverse=True)  # the best is drawn last
    values = np.array([row["value"] for row in done])
    low, high = values.min(), values.max()
    heights = (values - low) / (high - low) if high > low else np.full(len(done), 0.5)
    names = [*space.names, "result"]
    width = GAP * len(names)
    tall = round(TOP + TALL * (1 - NONE) + 8)
    parts = [f'<svg width="{width}" height="{tall}" viewBox="0 0 {width} {tall}" role="img" ']
    parts.append('aria-label="sets of values as lines" font-size="10" fill="currentColor">')
    first_good = len(done) - max(1, round(GOOD * len(done)))
    for number, (row, height) in enumerate(zip(done, heights, strict=True)):
        places = [place(space, name, row["params"]) for name in space.names]
        colour = BEST if number == len(done) - 1 else GOOD_ONES
        colour = OTHERS if number < first_good else colour
        wide = 2.5 if colour == BEST else 1.2
        points = " ".join(
            f"{GAP * (i + 0.5):.1f},{TOP + TALL * (1 - y):.1f}"
            for i, y in enumerate([*places, height])
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wide}"/>'
        )
    for i, name in enumerate(names):
        x = GAP * (i + 0.5)
        parts.append(
            f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{TOP + TALL}" stroke="currentColor"/>'
        )
        marks = axis_of(space, name) if name in space.slices else [(0, low), (1, high)]
        parts.append(text(x, 10, name, "font-weight='bold' text-anchor='middle'"))
        for height, mark in marks:
            parts.append(text(x + 4, TOP + TALL * (1 - height) + 4, _short(mark), HALO))
    return f'<div style="overflow-x: auto">{"".join(parts)}</svg></div>'


def place(space: Space, name: str, values: Mapping) -> float:
    """Where a value lies on its axis, 0 to 1; `NONE` if the parameter does not exist."""
    if name not in values:
        return NONE
    part = space.encode(values)[space.slices[name]]
    return float(part[0]) if len(part) == 1 else float(part.argmax() / (len(part) - 1))


def axis_of(space: Space, name: str) -> list[tuple[float, object]]:
    """What is written beside an axis: the ends of a range, or all choices; (height, value)."""
    one = space.distributions[name]
    if choices := choices_of(one):
        return [(i / (len(choices) - 1), choice) for i, choice in enumerate(choices)]
    return [(0.0, one.low), (1.0, one.high), *([(NONE, "none")] if name in space.when else [])]


def text(x: float, y: float, words: object, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(str(words))}</text>'


def _short(value: object) -> str:
    said = f"{value:.4g}" if isinstance(value, float) else str(value)
    return said if len(said) < 15 else f"{said[:13]}…"
