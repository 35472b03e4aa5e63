"""Figures of large batches: gradient noise, the rules for the learning rate (LARS too), records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from tutorial_dl import figure_style as style

__all__ = ["batch_errors", "gradient_noise", "records", "stable_rates"]


def gradient_noise(
    batches: Sequence[int],
    predicted: np.ndarray,
    measured: np.ndarray,
    title: str = "Twice the batch, half the variance",
    ax: Axes | None = None,
) -> style.Figure:
    """How far batch gradients are from the gradient of all samples, by batch size.

    Args:
        batches: samples per batch, (k,).
        predicted, measured: mean squared distance over the squared length of the gradient, (k,).
        title: the figure's title.
        ax: where to draw; a new figure if None.
    """
    with style.axes(ax) as ax:
        ax.plot(batches, predicted, color=style.PREDICTED, label="predicted")
        ax.plot(batches, measured, "o", color=style.MEASURED, label="measured")
        _batch_axis(ax, batches)
        ax.set(title=title, ylabel="variance / square of the gradient", yscale="log")
        ax.legend()
    return ax.figure


def batch_errors(
    batches: Sequence[int],
    runs: Mapping[str, np.ndarray],
    title: str = "Validation error by batch",
    limits: Mapping[str, float] | None = None,
    per_rank: int | None = None,
    ax: Axes | None = None,
) -> style.Figure:
    """The share of wrong answers by batch size: mean over seeds, bars from best to worst.

    Args:
        batches: samples per batch, (k,).
        runs: name -> accuracies from 0 to 1, shape (k, seeds).
        title: the figure's title.
        limits: name -> batch, drawn as a vertical line; a run's name gives its colour.
        per_rank: samples per rank; if given, the upper axis counts ranks.
        ax: where to draw; a new figure if None.

    Raises:
        ValueError: accuracies of another shape.
    """
    with style.axes(ax, width=7.6, height=4.6) as ax:
        for number, (name, accuracies) in enumerate(runs.items()):
            accuracies = np.asarray(accuracies, float)
            if accuracies.ndim != 2 or len(accuracies) != len(batches):
                raise ValueError(
                    f"{name}: accuracies must have shape ({len(batches)}, seeds), one row per "
                    f"batch; got {accuracies.shape}"
                )
            wrong = np.maximum(100 * (1 - accuracies), FLOOR)  # per cent, (k, seeds)
            mean = np.maximum(100 * (1 - accuracies.mean(axis=1)), FLOOR)
            # Side by side; otherwise one would hide the other.
            aside = np.array(batches) * 1.05 ** (number - (len(runs) - 1) / 2)
            ax.errorbar(
                aside, mean, [mean - wrong.min(axis=1), wrong.max(axis=1) - mean],
                color=_colour(number), marker=style.MARKERS[number % len(style.MARKERS)],
                linestyle="none", elinewidth=1.2, label=name,
            )  # fmt: skip
        for number, (name, batch) in enumerate((limits or {}).items()):
            known = list(runs).index(name) if name in runs else number
            ax.axvline(batch, color=_colour(known), linestyle="--", linewidth=1.4)
            ax.annotate(
                "its limit, predicted" if name in runs else name, (batch, 0.98), rotation=90,
                xycoords=("data", "axes fraction"), xytext=(-3, 0), textcoords="offset points",
                ha="right", va="top", size=8, color=_colour(known),
            )  # fmt: skip
        _batch_axis(ax, batches)
        ax.set(title=title, ylabel="wrong answers (%)", yscale="log")
        shown = [tick for tick in TICKS if ax.get_ylim()[0] <= tick <= ax.get_ylim()[1]]
        ax.set_yticks(shown, [f"{tick:g}" for tick in shown])
        ax.yaxis.set_minor_locator(NullLocator())
        if per_rank:
            upper = ax.secondary_xaxis("top")
            upper.set_xticks(batches, [f"{batch / per_rank:g}" for batch in batches])
            upper.xaxis.set_minor_locator(NullLocator())
            upper.set_xlabel(f"ranks of {per_rank} samples each")
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax.figure


FLOOR = 0.01  # %; 0% cannot be drawn on a logarithmic axis
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def stable_rates(
    updates: Sequence[int],
    limits: np.ndarray,
    asked: Mapping[str, float],
    title: str = "The largest stable rate while the network learns",
    ax: Axes | None = None,
) -> style.Figure:
    """The largest stable learning rate during training, one line per run, and requested rates.

    Args:
        updates: after how many updates the limits were found, (k,), 1 or more each.
        limits: learning rates, shape (runs, k).
        asked: name -> learning rate, drawn as a horizontal line.
        title: the figure's title.
        ax: where to draw; a new figure if None.
    """
    with style.axes(ax, width=7.6) as ax:
        for number, limit in enumerate(np.asarray(limits, float)):
            ax.plot(
                updates, limit, marker=style.MARKERS[number % len(style.MARKERS)], linewidth=0.8,
                color=style.MEASURED, label=None if number else "limit, measured (line per seed)",
            )  # fmt: skip
        for name, rate in asked.items():
            ax.axhline(rate, color=style.PREDICTED, linestyle="--", linewidth=1.4)
            ax.annotate(
                f"{name}: {rate:.2g}", (1, rate), xycoords=("axes fraction", "data"),
                xytext=(4, 0), textcoords="offset points", va="center", size=9,
            )  # fmt: skip
        ax.set_xscale("log")
        ax.set_xticks(updates, [f"{update}" for update in updates])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set(title=title, xlabel="updates", ylabel="learning rate", yscale="log")
        low, high = ax.get_ylim()
        ax.set_ylim(0.6 * low, high)  # room for the legend
        shown = [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5) if low <= tick <= high]
        ax.set_yticks(shown, [f"{tick:g}" for tick in shown])
        ax.yaxis.set_minor_locator(NullLocator())
        ax.legend(loc="lower left")
    return ax.figure


def records(
    rows: Sequence[tuple[str, Mapping[str, float]]],
    title: str = "Fewer steps, more samples per second: where the hour went",
) -> style.Figure:
    """Training runs as rows, one panel per quantity, on logarithmic axes.

    Args:
        rows: (label, quantity with its unit -> number above 0), all with the same quantities.
        title: the figure's title.
    """
    names = list(rows[0][1])
    for label, row in rows:
        if list(row) != names:
            raise ValueError(f"{label} must have {', '.join(names)}; got {', '.join(row)}")
    labels, at = [label for label, _ in rows], np.arange(len(rows))
    with style.panels(1, len(names), 3.3, 1.2 + 0.36 * len(rows), sharey=True) as (figure, axes):
        for number, (ax, name) in enumerate(zip(axes[0], names, strict=True)):
            values = np.array([row[name] for _, row in rows], float)
            ax.plot(values, at, style.MARKERS[number % len(style.MARKERS)], color=_colour(number))
            for y, value in zip(at, values, strict=True):
                ax.annotate(
                    f"{value:,.0f}", (value, y), xytext=(6, 0), textcoords="offset points",
                    va="center", size=8,
                )  # fmt: skip
            ax.set(xscale="log", xlabel=name, xlim=(values.min() / 2, values.max() * 6))
            ax.set_yticks(at, labels)
        axes[0, 0].invert_yaxis()
        axes[0, 0].set_title(title)
    return figure


def _batch_axis(ax: Axes, batches: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(batches, [f"{batch}" for batch in batches])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("batch (samples)")


def _colour(number: int) -> str:
    return style.COLOURS[number % len(style.COLOURS)]
