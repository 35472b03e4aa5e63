"""What shows a study, as HTML: tables, lines in SVG, and sets as parallel coordinates.

The display in a notebook (live_view.py) is renewed each second while the search goes on, so these
are written in milliseconds, without matplotlib. The report (report.py) has the same, too.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from .space import Space, choices_of

if TYPE_CHECKING:
    from .study import Study

WIDTH, HEIGHT, EDGE, AFTER = 360, 120, 8, 24  # pixels of lines; around them; for what ends one
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


def table(head: Sequence[str], lines: Iterable[Sequence]) -> str:
    """A table, as wide as it must be."""

    def row(kind: str, line: Sequence) -> str:
        return "".join(f"<{kind}>{html.escape(short(one, 6))}</{kind}>" for one in line)

    body = "".join(f"<tr>{row('td', line)}</tr>" for line in lines)
    page = f"<table><tr>{row('th', head)}</tr>{body}</table>"
    return f'<div style="overflow-x: auto">{page}</div>'


def lines(label: str, curves: Sequence[tuple], dots: Sequence[tuple] = ()) -> str:
    """SVG of `curves`, each (points, colour, width, the mark at its end), and of dots (x, y)."""
    xs, ys = np.array([point for points, *_ in curves for point in points] + list(dots)).T
    low, high = float(ys.min()), float(ys.max())
    if low == high:
        low, high = low - 1, high + 1
    left, wide = xs.min(), xs.max() - xs.min() or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        right = EDGE + (WIDTH - 2 * EDGE - AFTER) * (x - left) / wide
        return right, HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (y - low) / (high - low)

    parts = [polyline([at(*point) for point in of], *look) for of, *look, _ in curves]
    for x, y in (at(*dot) for dot in dots):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{GOOD_ONES}"/>')
    for points, _, _, mark in curves:
        x, y = at(*points[-1])
        parts.append(text(x + 3, y + 4, mark, HALO) if mark != "" else "")
    parts += [text(2, 10, short(high), HALO), text(2, HEIGHT - 2, short(low), HALO)]
    return svg(WIDTH, HEIGHT, label, parts)


def captioned(words: str, drawn: str) -> str:
    """A picture below words that say what it shows."""
    words = f"<small>{html.escape(words)}</small>"
    return f'<div style="display: inline-block">{words}<br>{drawn}</div>'


def curve(values: Sequence[float], maximise: bool, name: str = "figure of merit") -> str:
    """Figures of merit by trial as dots, and the best so far as a line."""
    so_far = (np.maximum if maximise else np.minimum).accumulate(values)
    best = list(enumerate(so_far))
    label = f"{name} by trial"
    drawn = lines(label, [(best, BEST, 2, "")], list(enumerate(values)))
    return captioned(f"{label}; orange: the best so far", drawn)


def by_epoch(trials: Iterable[FrozenTrial], name: str = "figure of merit") -> str:
    """Figures of merit by epoch, a line per trial: those in training in orange, with their number.

    It is empty if no trial has reported twice.
    """
    found = [trial for trial in trials if len(trial.intermediate_values) > 1]
    if not found:
        return ""
    found.sort(key=lambda trial: trial.state == TrialState.RUNNING)  # those are drawn last
    looks = {True: (BEST, 2), False: (OTHERS, 1)}
    curves = []
    for trial in found:
        runs = trial.state == TrialState.RUNNING
        steps = sorted(trial.intermediate_values.items())
        curves.append((steps, *looks[runs], trial.number if runs else ""))
    label = f"{name} by epoch"
    words = f"{label}; orange: in training, with the trial's number"
    return captioned(words, lines(label, curves))


def parallel(study: Study) -> str:
    """All complete trials as lines over an axis per parameter and one per figure of merit.

    The best line, or those of the Pareto front, are orange and above the others. Of one figure, the
    next ones are blue. Where a parameter does not exist, a line passes below its axis.
    """
    space, best = study.space, {trial.number for trial in study.front}
    done = [row for row in study.rows() if row["state"] == "complete"]
    if not done:
        return captioned("no trial was completed", "")
    values = np.array([row["value"] for row in done]).reshape(len(done), -1)  # (n, figures)
    low, high = values.min(0), values.max(0)
    heights = np.where(high > low, (values - low) / np.where(high > low, high - low, 1), 0.5)
    one = len(study.merits) == 1
    keys = values[:, 0] * (1 if study.higher[0] else -1) * one
    order = np.lexsort([[row["number"] in best for row in done], keys])  # the best are drawn last
    good = order[-max(1, round(GOOD * len(done))) :] if one else ()
    names, parts = [*space.names, *study.merits], []
    for number in order:
        row = done[number]
        places = [*(place(space, name, row["params"]) for name in space.names), *heights[number]]
        points = [(GAP * (i + 0.5), TOP + TALL * (1 - y)) for i, y in enumerate(places)]
        colour = GOOD_ONES if number in good else OTHERS
        top = row["number"] in best
        parts.append(polyline(points, BEST if top else colour, 2.5 if top else 1.2))
    for i, name in enumerate(names):
        x = GAP * (i + 0.5)
        parts.append(
            f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{TOP + TALL}" stroke="currentColor"/>'
        )
        figure = i - len(space.names)
        marks = axis_of(space, name) if figure < 0 else [(0, low[figure]), (1, high[figure])]
        parts.append(text(x, 10, short(name), "font-weight='bold' text-anchor='middle'"))
        for height, mark in marks:
            parts.append(text(x + 4, TOP + TALL * (1 - height) + 4, short(mark), HALO))
    tall = round(TOP + TALL * (1 - NONE) + 8)
    drawn = svg(GAP * len(names), tall, "sets of values as lines", parts)
    rest = "the best; blue: the next ones" if one else "the Pareto front"
    words = f"each line is a trial, over an axis per parameter; orange: {rest}"
    return f'<div style="overflow-x: auto">{captioned(words, drawn)}</div>'


def place(space: Space, name: str, values: Mapping) -> float:
    """Where a value lies on its axis, 0 to 1; `NONE` if the parameter does not exist."""
    if name not in values:
        return NONE
    part = space.encode(values)[space.slices[name]]
    if choices_of(space.distributions[name]):
        return float(part.argmax() / max(1, len(part) - 1))
    return float(part[0])


def axis_of(space: Space, name: str) -> list[tuple[float, object]]:
    """What is written beside an axis: the ends of a range, or all choices; (height, value)."""
    one = space.distributions[name]
    if choices := choices_of(one):
        return [(i / max(1, len(choices) - 1), one) for i, one in enumerate(choices)]
    return [(0.0, one.low), (1.0, one.high), *([(NONE, "none")] if name in space.when else [])]


def svg(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(label)}" font-size="10" fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def polyline(points: Iterable[tuple[float, float]], colour: str, width: float) -> str:
    at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def text(x: float, y: float, words: object, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(str(words))}</text>'


def said(values: Mapping) -> str:
    """A set of values in words."""
    return ", ".join(f"{name} {short(value, 5)}" for name, value in values.items())


def short(value: object, digits: int = 4) -> str:
    """A number, or several, rounded; other values' beginnings where few digits are wanted."""
    if isinstance(value, list):
        return ", ".join(short(one, digits) for one in value)
    said = f"{value:.{digits}g}" if isinstance(value, float) else str(value)
    return said if digits > 4 or len(said) < 15 else f"{said[:13]}…"
