"""Figures of kernels: trips through memory, how long they take, a step in shared memory."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import EngFormatter

from tutorial_dl import figure_style as style
from tutorial_dl.course.traffic import Trip, moved
from tutorial_dl.figure_style import Lines
from tutorial_dl.words import counted

SHADES = {
    does: {"facecolor": colour, "edgecolor": "#DDDDDD"}
    for does, colour in {"": "white", "r": "#CFE8F7", "fw": "#FBE3B3", "rw": "#B7DFA9"}.items()
}
TYPE = {"size": 8}


def trips(plans: Mapping[str, Sequence[Trip]], vectors: Sequence[str]) -> style.Figure:
    """What each trip reads and writes: one row per trip, one column per vector.

    Args:
        plans: title -> trips, as `traffic.trips` counts them; one panel per title.
        vectors: their names, in the order of the columns.
    """
    for title, plan in plans.items():
        unknown = {name for trip in plan for name in (*trip.reads, *trip.writes)} - set(vectors)
        if unknown:
            raise ValueError(
                f"{title}: trips use {', '.join(sorted(unknown))}, which vectors must contain"
            )
    rows = max(map(len, plans.values()))
    size = {"width": 0.55 * len(vectors) + 1.6, "height": 0.27 * rows + 1.0}
    with style.panels(1, len(plans), **size) as (figure, axes):
        for ax, (title, plan) in zip(axes[0], plans.items(), strict=True):
            for row, trip in enumerate(plan):
                for column, name in enumerate(vectors):
                    does = "r" * (name in trip.reads) + "f" * (name in trip.fetches)
                    does += "w" * (name in trip.writes)
                    look = SHADES[does] | {"linewidth": 0.8}
                    style.cell(ax, (column - 0.45, row - 0.42), (0.9, 0.84), does, TYPE, **look)
            counts = f"{counted(len(plan), 'trip')}, {moved(plan)} numbers per weight"
            ax.set_title(f"{title}:\n{counts}", fontsize=10)
            ax.set(xlim=(-0.6, len(vectors) - 0.4), ylim=(rows - 0.4, -0.6))
            ax.set_xticks(range(len(vectors)), [f"${name}$" for name in vectors])
            ax.xaxis.tick_top()
            ax.set_yticks(range(len(plan)), [trip.operation for trip in plan], size=8)
            style.bare(ax)
        said = {"r": "read", "rw": "read and written", "fw": "fetched, then overwritten"}
        looks = {f"{does}: {words}": SHADES[does] for does, words in said.items()}
        style.patch_legend(figure, looks, fontsize=9)
    return figure


def beside(
    predicted: Mapping[str, float], measured: Lines, title: str, logarithmic: bool = False
) -> style.Figure:
    """One row per way of doing the same: way -> seconds, measured (repeats,), and some predicted.

    Predictions are lines. The marker is the fastest run, since other programs only ever add time; a
    bar goes to the median.
    """
    if extra := set(predicted) - set(measured):
        raise ValueError(f"predicted, but not measured: {', '.join(sorted(extra))}")
    with style.axes(height=0.5 * len(measured) + 1.6) as ax:
        for row, (name, numbers) in enumerate(measured.items()):
            least = np.min(numbers)
            look = {"marker": "o", "color": style.MEASURED, "elinewidth": 1}
            look["label"] = None if row else "measured"
            ax.errorbar(least, row, xerr=[[0], [np.median(numbers) - least]], **look)
            if name in predicted:
                style.upright(ax, predicted[name], row, 0.32)
        style.rows(ax, list(measured))
        if logarithmic:
            ax.set_xscale("log")
        else:
            ax.set_xlim(left=0)
        ax.xaxis.set_major_formatter(_seconds)
        ax.set(title=title, xlabel="time")
        style.legend_beside(ax)  # bars may reach anywhere on the axes
    return ax.figure


def step_traffic(ways: Mapping[str, Mapping[str, float]]) -> style.Figure:
    """Numbers through memory per weight, over all ranks: way of a step -> its part -> numbers."""
    parts = list(dict.fromkeys(part for way in ways.values() for part in way))
    hatches = ("", "//", "..", "\\\\", "xx")
    if len(parts) > len(hatches):
        raise ValueError(f"there can be at most {len(hatches)} parts, got {len(parts)}")
    with style.axes(height=0.6 * len(ways) + 1.9) as ax:
        widths = {
            part: np.array([way.get(part, 0) for way in ways.values()], float) for part in parts
        }
        looks = [
            {"color": colour, "alpha": 0.55, "hatch": hatch}
            for colour, hatch in zip(style.COLOURS, hatches, strict=False)
        ]
        totals = style.stacked(ax, range(len(ways)), widths, looks)
        style.rows(ax, list(ways))
        for bar in ax.patches:
            if width := bar.get_width():
                at = bar.get_x() + width / 2, bar.get_y() + bar.get_height() / 2
                style.middle(ax, *at, f"{width:g}", size=9)
        for row, total in enumerate(totals):
            ax.text(total + 0.01 * totals.max(), row, f"{total:g}", va="center", weight="bold")
        ax.set_xlim(0, 1.12 * totals.max())
        ax.grid(False)
        ax.set(title="The same step, fewer trips", xlabel="numbers through memory per weight")
        ax.figure.legend(loc="outside lower center", ncols=len(parts), fontsize=9)
    return ax.figure


def fused_step(ranks: int = 4) -> style.Figure:
    """The two windows during a fused step: one row per rank, one column per slice.

    A cell has the colour of the rank that works on it; g are gradients, w' new weights, and s is a
    slice of the optimizer's state, which no other rank has: see numba_kernels/step/step.py.
    """
    panels = {
        "1. rank r writes its\ngradient into row r": "$g_{}$",
        "2. rank r averages\nand updates slice r": "$w'$",
        "3. rank r uses the\nweights in row r": "$w'$",
    }
    with style.panels(1, 3, width=3.4, height=3.8) as (figure, axes):
        for number, (ax, (title, text)) in enumerate(zip(axes[0], panels.items(), strict=True)):
            updates = number == 1
            for row in range(ranks):
                for column in range(ranks):
                    owner = column if updates else row
                    _owned(ax, (column, row), owner, text.format(row))
                ax.text(-0.15, row + 0.5, str(row), ha="right", va="center", size=9)
                ax.text(row + 0.5, -0.2, str(row), ha="center", va="bottom", size=9)
            for rank in range(ranks) if updates else ():
                _owned(ax, (rank, ranks + 0.25), rank, "$s$", height=0.7)
            if updates:
                ax.text(-0.15, ranks + 0.6, "state", ha="right", va="center", size=9)
            # Words beside the rows: what the numbers mean, or what comes before this panel.
            look = {"weight": "bold", "color": style.GREY} if number else {}
            words = "barrier" if number else "row"
            style.middle(ax, -1.0, ranks / 2, words, rotation=90, **look)
            ax.text(ranks / 2, -0.75, "slice", ha="center", va="bottom")
            ax.set(xlim=(-1.4, ranks + 0.1), ylim=(ranks + 1.0, -1.4), aspect="equal", title=title)
            ax.title.set_size(10)
            ax.set_axis_off()
        looks = {f"rank {r}": {"facecolor": _pale(r)} for r in range(min(ranks, 7))}
        style.patch_legend(figure, looks, ncols=4)
    return figure


def _pale(rank: int) -> tuple[float, ...]:
    return tuple(0.45 * c + 0.55 for c in to_rgb(style.colour(rank)))


def _owned(ax: Axes, at, rank: int, text: str, height: float = 1.0) -> None:
    """Draw a cell in the colour of the rank that works on it."""
    look = {"facecolor": _pale(rank), "edgecolor": "white", "linewidth": 2}
    style.cell(ax, at, (1, height), text, {"size": 9}, **look)


def _seconds(value: float, position: int | None = None) -> str:
    return EngFormatter("s")(value, position) if value else "0"
