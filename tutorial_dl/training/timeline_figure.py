"""Figure of a timeline: what every rank does when, one row per rank."""

import numpy as np
from matplotlib.axes import Axes

from tutorial_dl.training.span_kinds import KINDS, Row, flat, kind, share_out

from .. import figure_style as style

__all__ = ["spans"]

PIECES = 250  # if a row has more pieces, it is drawn as shares of the time
COLUMNS = 200  # columns of such a row
STEPS = 4  # how many are shown where there are many
OTHER = "no span"
EDGE = {"edgecolor": "#777777", "linewidth": 0.4}

# Waiting is hatched, so that it is visible without colours too.
LOOKS = {
    "data": {"facecolor": style.SKY},
    "gradient": {"facecolor": style.BLUE},
    "sum forward": {"facecolor": style.RED, "hatch": "..."},
    "sum backward": {"facecolor": style.YELLOW, "hatch": "..."},
    "reduce": {"facecolor": style.ORANGE},
    "reduce + update": {"facecolor": style.ORANGE},
    "update": {"facecolor": style.GREEN},
    "hand out": {"facecolor": style.YELLOW},
    "validation": {"facecolor": style.PINK},
    "allreduce": {"facecolor": style.RED},
    "wait": {"facecolor": "#EEEEEE", "hatch": "////"},
    "wait (message)": {"facecolor": "#EEEEEE", "hatch": "\\\\\\\\"},
    OTHER: {"facecolor": "#C9D7E2"},
}
# For other names: the looks that the figure does not use yet, plain colours first.
COLOURS = (style.YELLOW, style.PINK, style.SKY, style.GREEN, style.RED, style.ORANGE)
SPARE = [{"facecolor": colour} for colour in COLOURS] + [
    {"facecolor": colour, "hatch": hatch} for hatch in ("xxx", "...", "+++") for colour in COLOURS
]


def spans(timeline, window: tuple[float, float] | str = "auto") -> style.Figure:
    """The spans of all ranks over time, and how each rank's time is divided.

    Args:
        timeline: a `training.timeline.Timeline` of any number of ranks.
        window: (first, last) in ms since the recording began; "all"; or "auto", which shows a few
            steps in the middle where there are many. If it has too many spans to be told
            apart, it shows the shares of the time that they take.
    """
    rows = timeline.rows
    begin, end = _window(rows, window)
    drawn = [(row, _within(flat(row.spans), row, begin, end)) for row in rows]
    names = dict.fromkeys(name for _, pieces in drawn for name, _, _ in pieces)
    looks = _looks(sorted(names, key=_place))
    crowded = max((len(pieces) for _, pieces in drawn), default=0) > PIECES
    unit, per_unit = ("s", 1e9) if end - begin > 20e9 else ("ms", 1e6)  # per_unit: in ns
    with style.axes(width=9.6, height=max(2.4, 1.15 + 0.42 * len(rows))) as ax:
        for place, (row, pieces) in enumerate(drawn):
            draw = _draw_shares if crowded else _draw_pieces
            draw(ax, place, pieces, looks, begin, end, per_unit)
            shares = share_out(pieces, *_part(row, begin, end))
            text = " / ".join(f"{100 * shares[kind]:.0f} %" for kind in KINDS)
            at_right = {"transform": ax.get_yaxis_transform(), "va": "center", "fontsize": 9}
            ax.text(1.01, place, text, **at_right)
            if place and row.node != rows[place - 1].node:  # a line between nodes
                ax.axhline(place - 0.5, color=style.BLACK, linewidth=0.8)
        ax.text(
            1.01, -0.62, " / ".join(KINDS), transform=ax.get_yaxis_transform(), fontsize=8,
            va="bottom", color=style.GREY,
        )  # fmt: skip
        ax.set(
            xlim=(begin / per_unit, end / per_unit),
            ylim=(len(rows) - 0.4, -0.6),
            xlabel=f"time since the recording began, {unit}"
            + f"; shares of every {(end - begin) / per_unit / COLUMNS:.3g} {unit}" * crowded
            + "".join(f"\n{note}" for note in timeline.notes()),
            title=_title(rows, begin, end),
        )
        ax.set_yticks(range(len(rows)), [f"rank {row.rank}" for row in rows])
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="y")
        legend = {"loc": "outside lower left", "ncols": min(7, max(1, len(looks))), "fontsize": 9}
        style.patch_legend(ax.figure, {name: EDGE | look for name, look in looks.items()}, **legend)
    return ax.figure


def _window(rows: list[Row], window) -> tuple[int, int]:
    """Begin and end of the part that is shown, in ns."""
    first, last = min(row.begin for row in rows), max(row.end for row in rows)
    if window == "all":
        return first, max(last, first + 1)
    if window != "auto":
        low, high = (round(1e6 * t) for t in window)
        if not first <= low < high <= last:
            raise ValueError(
                f"window must be two times in ms, in order, between {first / 1e6:g} "
                f"and {last / 1e6:g}, got {window}"
            )
        return low, high
    starts = _steps(rows[0])
    if len(starts) > 2 * STEPS:
        low, high = _in_the_middle(starts, rows[0])
        return max(first, low), min(last, high)
    longest = max(rows, key=lambda row: len(row.spans)).spans
    if not starts and len(longest) > PIECES:  # no training: some spans in the middle
        middle = len(longest) // 2
        return longest[middle - 30][1], max(e for _, _, e in longest[middle - 30 : middle + 30])
    return first, max(last, first + 1)


def _steps(row: Row) -> list[int]:
    """When the steps of a training loop begin: with their batch, or else with their gradient."""
    for name in ("data", "gradient"):
        starts = [begin for each, begin, _ in row.spans if each == name]
        if starts:
            return starts
    return []


def _in_the_middle(starts: list[int], row: Row) -> tuple[int, int]:
    """STEPS steps as near to the middle as possible without the end of an epoch in them."""
    ends = np.array([s[1:] for s in row.spans if s[0] == "validation"]).reshape(-1, 2)
    windows = []
    for low, high in zip(starts[:-STEPS], starts[STEPS:], strict=True):
        aside = (high - low) // 50  # ranks are never quite in step
        windows.append((low - aside, high + aside))
    middle = len(windows) // 2  # by count, not time: the first step may take very long
    nearest = sorted(range(len(windows)), key=lambda number: abs(number - middle))
    for low, high in (windows[number] for number in nearest):
        if not ((ends[:, 0] < high) & (ends[:, 1] > low)).any():
            return low, high
    return windows[middle]


def _within(pieces, row: Row, begin: int, end: int):
    """The pieces between `begin` and `end`, and OTHER in the gaps between them."""
    low, high = _part(row, begin, end)
    found, at = [], low
    for name, first, last in pieces:
        if last <= low or first >= high:
            continue
        if first > at:
            found.append((OTHER, at, first))
        found.append((name, max(first, low), min(last, high)))
        at = found[-1][2]
    return [*found, (OTHER, at, high)] if at < high else found


def _part(row: Row, begin: int, end: int) -> tuple[int, int]:
    """The part of the row's recording that lies in the window."""
    low = min(max(begin, row.begin), end)
    return low, max(low, min(end, row.end))


def _draw_pieces(ax: Axes, place: int, pieces, looks, begin, end, per_unit) -> None:
    for name, look in looks.items():
        bars = [(b / per_unit, (e - b) / per_unit) for each, b, e in pieces if each == name]
        ax.broken_barh(bars, (place - 0.38, 0.76), **EDGE, **look)


def _draw_shares(ax: Axes, place: int, pieces, looks, begin, end, per_unit) -> None:
    """Draw a stack of shares for each of COLUMNS equal parts of the time."""
    edges = np.linspace(begin, end, COLUMNS + 1)
    width = edges[1] - edges[0]
    bottom = np.full(COLUMNS, place + 0.38)
    for name, look in looks.items():
        height = 0.76 * _covered([p[1:] for p in pieces if p[0] == name], edges) / width
        top = bottom - height
        ax.fill_between(
            edges / per_unit, np.append(bottom, bottom[-1]), np.append(top, top[-1]),
            step="post", linewidth=0, edgecolor="#777777", **look,
        )  # fmt: skip
        bottom = top


def _covered(intervals, edges: np.ndarray) -> np.ndarray:
    """How much of each part between `edges` the intervals cover, shape (parts,), in ns.

    Intervals don't overlap, so the time that they cover so far is a piecewise linear function.
    """
    if not intervals:
        return np.zeros(edges.size - 1)
    begins, ends = np.array(intervals, float).T
    times = np.column_stack([begins, ends]).ravel()
    total = np.cumsum(ends - begins)
    so_far = np.column_stack([total - (ends - begins), total]).ravel()
    return np.diff(np.interp(edges, times, so_far))


def _looks(names) -> dict[str, dict]:
    used = [LOOKS[name] for name in names if name in LOOKS]
    spare = (look for look in SPARE if look not in used)
    return {
        name: LOOKS.get(name) or next(spare, {"facecolor": style.GREY, "hatch": "oo"})
        for name in names
    }


def _place(name: str) -> tuple:
    """Order in legend and stacks: as in a step, then other names; waiting and OTHER at the end."""
    known = list(LOOKS)
    last = name == OTHER or kind(name) == KINDS[-1]
    return (last, known.index(name) if name in known else len(known), name)


def _title(rows: list[Row], begin: int, end: int) -> str:
    whole = max(row.end for row in rows) - min(row.begin for row in rows)
    who = f"What {len(rows)} ranks do" if len(rows) > 1 else "What one rank does"
    part = (end - begin) / max(1, whole)
    return who + (f" ({100 * part:.2g} % of the recording)" if part < 0.99 else "")
