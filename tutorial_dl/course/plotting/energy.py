"""Figures of gradient energy matching (GEM): what is committed, and the pace by workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tutorial_dl import figure_style as style

__all__ = ["commits", "kept_pace", "pace_by_workers", "shares_of_pi"]


def commits(
    runs: Mapping[str, tuple[np.ndarray, np.ndarray, Sequence[int]]],
    title: str = "A worker does what the others have left",
) -> style.Figure:
    """The weight after each update (above), and pi of each update by its worker (below).

    Args:
        runs: name -> (x before the first and after each update (t + 1,), pi (t,), the
            worker of each update (t,)); one column per run.
    """
    with style.panels(2, len(runs), width=3.9, height=2.4, sharex="col", sharey="row") as (
        figure,
        axes,
    ):
        for (upper, lower), (name, (x, pi, workers)) in zip(axes.T, runs.items(), strict=True):
            upper.plot(x, color=style.BLACK, linewidth=1)
            for update, worker in enumerate(workers):
                look = style.marks(worker)
                upper.plot(update + 1, x[update + 1], **look)
                lower.vlines(update + 1, 0, pi[update], color=look["color"])
                first = update == list(workers).index(worker)
                lower.plot(update + 1, pi[update], label=f"worker {worker}" * first or None, **look)
            lower.set(xlabel="updates", ylim=(0, None))
            upper.set_title(name)
            lower.xaxis.set_major_locator(MaxNLocator(integer=True))
            if len(set(workers)) > 1:
                lower.legend()
        axes[0, 0].set_ylabel("x")
        axes[1, 0].set_ylabel("π")
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11)
    return figure


def pace_by_workers(
    workers: Sequence[int],
    predicted: Mapping[str, Sequence[float]],
    measured: Mapping[str, Sequence[float]],
    title: str = "How far all workers together move the weights per round",
) -> style.Figure:
    """The pace on a slope by the number of workers, relative to one process with momentum.

    Args:
        workers: (k,).
        predicted, measured: name -> pace, (k,); the same names.
    """
    with style.axes() as ax:
        style.level(ax, 1, "one process with momentum")
        style.predicted_measured_each(ax, workers, predicted, measured)
        style.log_x(ax, workers)
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set(title=title, xlabel="workers (lines: predicted)", ylabel="pace")
        ax.legend(loc="upper left")
    return ax.figure


def kept_pace(
    runs: Mapping[str, Mapping[int, np.ndarray]],
    single: np.ndarray,
    titles: Sequence[str],
) -> style.Figure:
    """Distance from the minimum by rounds: one panel per method, one line per number of workers.

    Args:
        runs: name -> {workers: |x| after each round, (t,)}.
        single: |x| of one process with momentum after each step, (t,).
        titles: the panels' titles.
    """
    with style.panels(1, len(runs), width=5.0, height=3.8, sharey=True) as (figure, axes):
        for ax, (name, paths), title in zip(axes[0], runs.items(), titles, strict=True):
            for number, (workers, x) in enumerate(paths.items()):
                label = f"{workers} worker{'s'[: workers > 1]}"
                ax.plot(x, linewidth=1.4, label=label, **style.line(number))
            ax.plot(single, color=style.GREY, linewidth=4, alpha=0.4, label="one process", zorder=0)
            ax.set(title=f"{name}: {title}", xlabel="rounds (steps of each worker)", yscale="log")
            ax.set_ylim(1e-4, 1e4)
        axes[0, 0].set_ylabel("distance from the minimum")
        style.legend_beside(axes[0, -1])
    return figure


def shares_of_pi(
    workers: Sequence[int],
    nothing: Sequence[float],
    most: Sequence[float],
    title: str = "With more workers, the others have already moved more weights",
) -> style.Figure:
    """Shares of the weights that a commit leaves alone, moves, and moves as far as it may.

    Args:
        workers: (k,).
        nothing, most: shares of the weights with pi = 0 and with pi at its cut, (k,) each, 0 to 1.
    """
    names = [f"{p}" for p in workers]
    nothing, most = np.asarray(nothing, float), np.asarray(most, float)
    between = 1 - nothing - most
    with style.axes(height=3.2) as ax:
        left = np.zeros(len(names))
        for share, label, colour, hatch in (
            (nothing, "π = 0: nothing left to do", style.GREY, ""),
            (between, "between", style.SKY, "//"),
            (most, "π at its cut", style.ORANGE, "xx"),
        ):
            ax.barh(
                names, share, left=left, label=label, color=colour, hatch=hatch, height=0.6,
                edgecolor="white",
            )  # fmt: skip
            left = left + share
        ax.set(title=title, xlabel="share of the weights", ylabel="workers", xlim=(0, 1))
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        style.legend_beside(ax)
    return ax.figure
