"""Figures of synchronous training: a wrong average, a step in shared memory, overlap."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from tutorial_dl import figure_style as style

__all__ = ["distances", "fused_step", "mean_of_means", "overlapped"]


def mean_of_means(
    samples: np.ndarray,
    predicted: np.ndarray,
    measured: np.ndarray,
    title: str = "A mean of means is wrong unless the shares are equal",
) -> style.Figure:
    """Relative error of the plain mean of the ranks' gradients, by the samples of one rank.

    Args:
        samples: samples of rank 0, shape (k,).
        predicted, measured: |mean of means - gradient| / |gradient|, shape (k,).
    """
    with style.axes() as ax:
        labels = ("predicted", "measured, weighted equally")
        style.predicted_measured(ax, samples, predicted, measured, labels)
        ax.plot(
            samples, np.zeros(len(samples)), color=style.GREEN, label="weighted by samples: zero"
        )
        style.log_x(ax, samples)
        ax.invert_xaxis()
        ax.set(title=title, xlabel="samples on rank 0", ylabel="error / length of the gradient")
        ax.legend(loc="upper left")
    return ax.figure


def distances(
    runs: Mapping[str, np.ndarray],
    title: str = "Weighted by samples, the ranks follow one process to the last digit",
) -> style.Figure:
    """How far the weights of each run are from those of one process, by step.

    Args:
        runs: legend entry -> largest |difference| of a weight after each step, shape (steps,).
    """
    with style.axes() as ax:
        for number, (label, away) in enumerate(runs.items()):
            # A difference of zero cannot be drawn on a logarithmic axis.
            away = np.maximum(away, np.finfo(float).eps / 8)
            steps, every = range(1, len(away) + 1), max(1, len(away) // 30)
            ax.plot(steps, away, label=label, markevery=every, **style.marks(number))
        ax.axhline(np.finfo(float).eps, color=style.GREY, linewidth=1)
        ax.annotate(
            "ε: the rounding of a number near 1", (1, np.finfo(float).eps), color=style.GREY,
            xycoords=("axes fraction", "data"), ha="right", va="top",
            xytext=(-4, -4), textcoords="offset points",
        )  # fmt: skip
        ax.set(title=title, xlabel="step", ylabel="largest difference of a weight", yscale="log")
        ax.set_ylim(bottom=np.finfo(float).eps / 50)
        ax.legend()
    return ax.figure


def fused_step(ranks: int = 4) -> style.Figure:
    """The two windows during a fused step: one row per rank, one column per slice.

    A cell has the colour of the rank that works on it. The code is numba_kernels/step/step.py.
    """
    gradients = [[f"$g_{row}$"] * ranks for row in range(ranks)]
    weights = [["$w$"] * ranks for _ in range(ranks)]
    titles = (
        "1. rank r writes its gradient\n    into row r",
        "2. rank r averages slice r of all gradients,\n    and writes slice r of all new weights",
        "3. rank r has all new weights in row r\n    for its next gradient",
    )
    with style.panels(1, 3, width=3.9, height=3.6) as (figure, axes):
        for number, (ax, title) in enumerate(zip(axes[0], titles, strict=True)):
            texts = weights if number else gradients
            for row in range(ranks):
                for column in range(ranks):
                    text = "$g \\to w$" if number == 1 else texts[row][column]
                    _cell(ax, column, row, column if number == 1 else row, text)
                ax.text(-0.15, row + 0.5, f"row {row}", ha="right", va="center", size=9)
                ax.text(row + 0.5, -0.2, f"slice {row}", ha="center", va="bottom", size=9)
            if number == 1:
                for rank in range(ranks):
                    _cell(ax, rank, ranks + 0.6, rank, "state", height=0.6)
                ax.text(
                    ranks / 2, ranks + 0.45, "each rank keeps the optimizer state of its slice",
                    ha="center", va="bottom", size=8,
                )  # fmt: skip
            else:
                for rank in range(ranks):
                    _cell(ax, rank, ranks + 0.6, rank, f"rank {rank}", height=0.6)
                ax.text(ranks / 2, ranks + 0.45, "colours", ha="center", va="bottom", size=8)
            if number:
                ax.text(
                    -1.35, ranks / 2, "barrier", rotation=90, ha="center", va="center",
                    weight="bold", color=style.GREY,
                )  # fmt: skip
            ax.set(xlim=(-1.6, ranks + 0.1), ylim=(ranks + 1.3, -0.6), aspect="equal", title=title)
            ax.title.set_size(10)
            ax.set_axis_off()
    return figure


def _cell(ax: Axes, x: float, y: float, rank: int, text: str, height: float = 1.0) -> None:
    red, green, blue = to_rgb(style.colour(rank))
    pale = tuple(0.45 * c + 0.55 for c in (red, green, blue))
    ax.add_patch(Rectangle((x, y), 1, height, facecolor=pale, edgecolor="white", linewidth=2))
    ax.text(x + 0.5, y + height / 2, text, ha="center", va="center", size=9)


def overlapped(seconds: dict[str, float], hidden: float) -> style.Figure:
    """Time of a gradient alone, with an exchange after it, and with an exchange meanwhile, in ms.

    Args:
        seconds: name -> seconds, as `strategies.overlap.seconds` returns them.
        hidden: seconds of the last one if idle cores did the exchange, drawn as a dashed line.
    """
    names = list(seconds)
    with style.axes(height=2.6) as ax:
        ax.barh(names, [1e3 * t for t in seconds.values()], color=style.MEASURED, height=0.6)
        for row, t in enumerate(seconds.values()):
            ax.text(1e3 * t, row, f" {1e3 * t:.2f}", va="center")
        last, at = len(names) - 1, 1e3 * hidden
        ax.vlines(at, last - 0.45, last + 0.45, color=style.PREDICTED, linestyle="--")
        ax.text(at, last + 0.5, "with an idle core per helper", va="top", ha="center")
        ax.set_ylim(last + 0.95, -0.5)  # the first bar on top
        ax.set_title("What overlap gains or costs on this machine", loc="left")
        ax.set(xlabel="ms", xlim=(0, 1.15e3 * max(*seconds.values(), hidden)), ylabel="gradient")
        ax.grid(axis="y", visible=False)
    return ax.figure
