"""Figures of failing ranks: ways to miss a collective, which rank waits for which, the cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch

from tutorial_dl import figure_style as style

__all__ = ["how_long", "slowest_of", "ways_to_miss", "who_waits", "with_faults"]

WAIT = {"facecolor": "#EEEEEE", "hatch": "////", "edgecolor": "#777777", "linewidth": 0.4}


def ways_to_miss() -> style.Figure:
    """A collective that all ranks join, and the four ways in which one of three ranks misses it."""
    with style.panels(1, 5, width=2.5, height=2.5) as (figure, axes):
        panels = zip(axes[0], (_all_come, _crash, _mismatch, _deadlock, _straggler), strict=True)
        for ax, draw in panels:
            draw(ax)
            ax.set(xlim=(0, 10), ylim=(2.6, -0.6), xlabel="time", xticks=[])
            ax.set_yticks(range(3), [f"rank {rank}" for rank in range(3)])
            ax.tick_params(axis="y", length=0)
            ax.grid(False)
        handles = [Patch(facecolor=style.BLUE), Patch(**WAIT)]
        figure.legend(handles, ["computes", "waits"], loc="outside lower center", ncols=2)
    return figure


def _work(ax: Axes, rank: int, begin: float, end: float) -> None:
    ax.barh(rank, end - begin, 0.6, begin, color=style.BLUE)


def _wait(ax: Axes, rank: int, begin: float, end: float = 10.0) -> None:
    ax.barh(rank, end - begin, 0.6, begin, **WAIT)


def _mark(ax: Axes, x: float, rank: int, marker: str, colour: str = style.BLACK) -> None:
    ax.plot([x], [rank], marker, markersize=11, color=colour, markeredgecolor="white", zorder=3)


def _arrive(
    ax: Axes, *arrivals: float, end: float = 10.0, waiting: Sequence[int] = (0, 1, 2)
) -> None:
    """Each rank computes until it arrives, and waits until `end`; from there on all compute."""
    for rank, came in enumerate(arrivals):
        _work(ax, rank, 0, came)
        if rank in waiting:
            _wait(ax, rank, came, end)
        _work(ax, rank, end, 10)
    if end < 10:
        ax.axvline(end, color=style.BLACK, linewidth=2)


def _all_come(ax: Axes) -> None:
    _arrive(ax, 4, 5, 4.5, end=5)
    ax.set_title("all ranks come")


def _crash(ax: Axes) -> None:
    _arrive(ax, 4, 3, 4.5, waiting=(0, 2))
    _mark(ax, 3, 1, "X", style.RED)
    ax.set_title("crash: never comes")


def _mismatch(ax: Axes) -> None:
    _arrive(ax, 4, 5, 4.5)
    _mark(ax, 4, 0, "o")
    _mark(ax, 5, 1, "D", style.RED)
    _mark(ax, 4.5, 2, "o")
    ax.set_title("mismatch: other call")


def _deadlock(ax: Axes) -> None:
    _arrive(ax, 4, 5, 4.5)
    for rank, x in enumerate((6, 7, 8)):
        arrow = FancyArrowPatch(
            (x, rank), (x, (rank + 1) % 3), arrowstyle="-|>", mutation_scale=14,
            color=style.RED, linewidth=2, zorder=3, shrinkA=0, shrinkB=0,
        )  # fmt: skip
        ax.add_patch(arrow)
    ax.set_title("deadlock: a circle")


def _straggler(ax: Axes) -> None:
    _arrive(ax, 4, 8.5, 4.5, end=8.5)
    ax.set_title("straggler: late")


def who_waits(panels: Sequence[tuple[str, Mapping[int, int]]], ranks: int) -> style.Figure:
    """Which rank waits for which, one panel per case. Arrows that form a circle are red.

    Args:
        panels: (title, waits) of each panel; waits[r] is the rank that rank r waits for. Leave out
            ranks that do not wait.
        ranks: how many, 2 or more.
    """
    for _, waits in panels:
        for rank, other in waits.items():
            if not (0 <= rank < ranks and 0 <= other < ranks and rank != other):
                raise ValueError(
                    f"rank {rank} waits for {other}: both must be ranks from 0 to {ranks - 1}, and "
                    "different"
                )
    with style.panels(1, len(panels), width=3.2, height=3.0) as (figure, axes):
        for ax, (title, waits) in zip(axes[0], panels, strict=True):
            _waits_of(ax, title, waits, ranks)
    return figure


def _waits_of(ax: Axes, title: str, waits: Mapping[int, int], ranks: int) -> None:
    angles = np.pi / 2 - 2 * np.pi * np.arange(ranks) / ranks  # clockwise from the top
    places = np.column_stack([np.cos(angles), np.sin(angles)])  # (ranks, 2)
    caught = circle(waits)
    for rank, other in waits.items():
        colour = style.RED if rank in caught else style.BLACK
        arrow = FancyArrowPatch(
            places[rank], places[other], arrowstyle="-|>", mutation_scale=18, color=colour,
            linewidth=2.2, shrinkA=26, shrinkB=26, connectionstyle="arc3,rad=-0.12",
        )  # fmt: skip
        ax.add_patch(arrow)
    for rank, (x, y) in enumerate(places):
        colour = style.RED if rank in caught else style.BLACK if rank in waits else style.GREEN
        ax.text(
            x, y, f"rank {rank}", ha="center", va="center",
            bbox={"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": colour},
        )  # fmt: skip
    ax.set(xlim=(-1.5, 1.5), ylim=(-1.35, 1.35), aspect="equal", title=title)
    ax.set_axis_off()


def circle(waits: Mapping[int, int]) -> set[int]:
    """The ranks that wait for each other in a circle; empty if there are none."""
    for first in waits:
        path = [first]
        while waits.get(path[-1]) is not None and waits[path[-1]] not in path:
            path.append(waits[path[-1]])
        if waits.get(path[-1]) == first:
            return set(path)
    return set()


def with_faults(
    undisturbed: Sequence[float],
    parts: Sequence[tuple[int, Sequence[float]]],
    faults: Mapping[float, str],
    title: str = "Two faults, one training run",
) -> style.Figure:
    """The loss of a training run with faults, on top of that of an undisturbed one.

    Args:
        undisturbed: loss after epoch 1, 2, ..., shape (epochs,).
        parts: (first epoch, losses) of each stretch between two interruptions.
        faults: epoch (with a fraction, for the part that was done) -> what happened there.
    """
    with style.axes() as ax:
        ax.plot(
            range(1, len(undisturbed) + 1), undisturbed, color=style.COLOURS[0], linewidth=9,
            alpha=0.3, solid_capstyle="round", label="undisturbed",
        )  # fmt: skip
        for number, (first, losses) in enumerate(parts):
            epochs = range(first, first + len(losses))
            ax.plot(
                epochs, losses, linewidth=1.2, marker=style.MARKERS[number],
                color=style.colour(number + 1), label=f"epochs {first} to {epochs[-1]}",
            )  # fmt: skip
        for epoch, what in faults.items():
            ax.axvline(epoch, color=style.RED, linewidth=1.5)
            ax.annotate(
                what, (epoch, 0.4), xycoords=("data", "axes fraction"), color=style.RED,
                rotation=90, ha="right", va="center", xytext=(-3, 0), textcoords="offset points",
            )  # fmt: skip
        ax.set(title=title, xlabel="epoch", ylabel="validation loss")
        # On white, because a fault's line may be right behind it.
        ax.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none")
    return ax.figure


def slowest_of(
    ranks: Sequence[int],
    predicted: Sequence[float],
    measured: Mapping[int, float],
    mean: float,
    title: str = "No rank is slow, and all wait",
) -> style.Figure:
    """The time of a step that ends when the last rank is done, by the number of ranks.

    Args:
        ranks, predicted: numbers of ranks, and expected times in s, shape (k,) each.
        measured: number of ranks -> time in s.
        mean: time of one rank alone, in s.
    """
    with style.axes() as ax:
        ax.plot(ranks, 1e3 * np.asarray(predicted), color=style.PREDICTED, label="predicted")
        ax.plot(
            list(measured), [1e3 * seconds for seconds in measured.values()], "o",
            color=style.MEASURED, markersize=7, label="measured",
        )  # fmt: skip
        ax.axhline(1e3 * mean, color=style.GREY, linestyle="--", linewidth=1.2)
        ax.annotate(
            "average time of one rank", (0.98, 1e3 * mean), color=style.GREY, ha="right",
            xycoords=("axes fraction", "data"), xytext=(0, -4), textcoords="offset points",
            va="top",
        )  # fmt: skip
        style.log_x(ax, ranks)
        ax.set(ylim=(0, None), title=title, xlabel="ranks", ylabel="time per step (ms)")
        ax.legend(loc="upper left")
    return ax.figure


def how_long(
    rows: Sequence[tuple[str, float, float]],
    title: str = "Every failed cell came to an end",
) -> style.Figure:
    """Seconds until failed cells ended, and the predicted latest end.

    Args:
        rows: (what happened, latest end in s, measured end in s) of each cell, from top to bottom.
    """
    with style.axes(height=0.9 + 0.42 * len(rows)) as ax:
        for place, (_, latest, measured) in enumerate(rows):
            ax.barh(place, latest, 0.6, facecolor="white", edgecolor=style.PREDICTED)
            ax.plot([measured], [place], "o", color=style.MEASURED, markersize=8)
        style.rows(ax, [name for name, _, _ in rows])
        ax.tick_params(axis="y", length=0)
        ax.set(title=title, xlabel="seconds until the cell ended", xlim=(0, None))
        handles = [*ax.lines[:1], Patch(facecolor="white", edgecolor=style.PREDICTED)]
        ax.legend(handles, ["measured", "predicted: at the latest"])
    return ax.figure
