"""Figures of kernels: trips through memory, and how long they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter

from tutorial_dl import figure_style as style
from tutorial_dl.course.traffic import Trip, moved

__all__ = ["beside", "step_traffic", "trips"]


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
    with style.panels(1, len(plans), width=0.55 * len(vectors) + 1.6, height=0.27 * rows + 1.0) as (
        figure,
        axes,
    ):
        for ax, (title, plan) in zip(axes[0], plans.items(), strict=True):
            for row, trip in enumerate(plan):
                for column, name in enumerate(vectors):
                    does = "r" * (name in trip.reads) + "f" * (name in trip.fetches)
                    does += "w" * (name in trip.writes)
                    _cell(ax, column, row, does)
            counts = f"{len(plan)} trip{'s'[: len(plan) > 1]}, {moved(plan)} numbers per weight"
            ax.set_title(f"{title}:\n{counts}", fontsize=10)
            ax.set(xlim=(-0.6, len(vectors) - 0.4), ylim=(rows - 0.4, -0.6))
            ax.set_xticks(range(len(vectors)), [f"${name}$" for name in vectors])
            ax.xaxis.tick_top()
            ax.set_yticks(range(len(plan)), [trip.operation for trip in plan], size=8)
            ax.tick_params(length=0)
            ax.grid(False)
            for spine in ax.spines.values():
                spine.set_visible(False)
        handles = [
            Rectangle((0, 0), 1, 1, facecolor=_shade(does), edgecolor="#DDDDDD", label=label)
            for does, label in (
                ("r", "r: read"),
                ("rw", "rw: read and written"),
                ("fw", "fw: fetched, then overwritten"),
            )
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _cell(ax: Axes, x: float, y: float, does: str) -> None:
    box = {"facecolor": _shade(does), "edgecolor": "#DDDDDD", "linewidth": 0.8}
    ax.add_patch(Rectangle((x - 0.45, y - 0.42), 0.9, 0.84, **box))
    if does:
        ax.text(x, y, does, ha="center", va="center", size=8)


def _shade(does: str) -> str:
    return {"": "white", "r": "#CFE8F7", "fw": "#FBE3B3", "rw": "#B7DFA9"}[does]


def beside(
    predicted: Mapping[str, float],
    measured: Mapping[str, np.ndarray],
    title: str,
    unit: str = "s",
    logarithmic: bool = False,
) -> style.Figure:
    """One row per way of doing the same: predicted as a line, measured as a marker.

    The marker is the fastest run, since other programs only ever add time; a bar goes to the
    median.

    Args:
        predicted: way -> a number in `unit`; some ways may be missing.
        measured: way -> such numbers, shape (repeats,).
        unit: of the horizontal axis.
        logarithmic: whether the horizontal axis is logarithmic.
    """
    if extra := set(predicted) - set(measured):
        raise ValueError(f"predicted, but not measured: {', '.join(sorted(extra))}")
    with style.axes(height=0.5 * len(measured) + 1.6) as ax:
        for row, (name, numbers) in enumerate(measured.items()):
            numbers = np.asarray(numbers, float)
            median, least = np.median(numbers), numbers.min()
            ax.errorbar(
                least, row, xerr=[[0], [median - least]], marker="o", color=style.MEASURED,
                elinewidth=1, label=None if row else "measured",
            )  # fmt: skip
            if name in predicted:
                known = any("predicted" in str(line.get_label()) for line in ax.lines)
                ax.plot(
                    [predicted[name]] * 2, [row - 0.32, row + 0.32], color=style.PREDICTED,
                    label=None if known else "predicted",
                )  # fmt: skip
        style.rows(ax, list(measured))
        if logarithmic:
            ax.set_xscale("log")
        else:
            ax.set_xlim(left=0)
        ax.xaxis.set_major_formatter(EngFormatter(unit))
        ax.set_title(title)
        ax.legend(loc="best", fontsize=9)
    return ax.figure


def step_traffic(ways: Mapping[str, Mapping[str, float]]) -> style.Figure:
    """What each way of a synchronous step moves, stacked by its parts.

    Args:
        ways: way -> part -> numbers that go through memory per weight, over all ranks.
    """
    parts = list(dict.fromkeys(part for way in ways.values() for part in way))
    hatches = ("", "//", "..", "\\\\", "xx")
    if len(parts) > len(hatches):
        raise ValueError(f"there can be at most {len(hatches)} parts, got {len(parts)}")
    with style.axes(height=0.6 * len(ways) + 1.9) as ax:
        left = np.zeros(len(ways))
        for number, part in enumerate(parts):
            widths = np.array([way.get(part, 0) for way in ways.values()], float)
            bars = ax.barh(
                range(len(ways)), widths, left=left, height=0.6, label=part,
                color=style.COLOURS[number], alpha=0.55, hatch=hatches[number], edgecolor="white",
            )  # fmt: skip
            for bar, width in zip(bars, widths, strict=True):
                if width:
                    ax.text(
                        bar.get_x() + width / 2, bar.get_y() + bar.get_height() / 2, f"{width:g}",
                        ha="center", va="center", size=9,
                    )  # fmt: skip
            left += widths
        for row, total in enumerate(left):
            ax.text(total + 0.01 * left.max(), row, f"{total:g}", va="center", weight="bold")
        style.rows(ax, list(ways))
        ax.set_xlim(0, 1.12 * left.max())
        ax.grid(False)
        ax.set(title="The same step, fewer trips", xlabel="numbers through memory per weight")
        ax.figure.legend(loc="outside lower center", ncols=len(parts), fontsize=9)
    return ax.figure
