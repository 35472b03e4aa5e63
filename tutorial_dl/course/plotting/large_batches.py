"""Figures of large batches: gradient noise, the rules for the learning rate (LARS too), records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import NullLocator

from tutorial_dl import figure_style as style

__all__ = ["batch_errors", "gradient_noise", "records", "stable_rates"]

BATCH = "batch (samples)"
FLOOR = 0.01  # %; 0% cannot be drawn on a logarithmic axis


def gradient_noise(
    batches: Sequence[int],
    predicted: np.ndarray,
    measured: np.ndarray,
    title: str = "Twice the batch, half the variance",
) -> style.Figure:
    """How far batch gradients are from the gradient of all samples, by batch size.

    Args:
        batches: samples per batch, (k,).
        predicted, measured: mean squared distance over the squared length of the gradient, (k,).
    """
    with style.axes() as ax:
        style.predicted_measured(ax, batches, predicted, measured)
        style.log_x(ax, batches)
        ax.set(title=title, xlabel=BATCH, ylabel="variance / square of the gradient", yscale="log")
        ax.legend()
    return ax.figure


def batch_errors(
    batches: Sequence[int],
    runs: Mapping[str, np.ndarray],
    title: str = "Validation error by batch",
    limits: Mapping[str, float] | None = None,
    per_rank: int | None = None,
) -> style.Figure:
    """The share of wrong answers by batch size: mean over seeds, bars from best to worst.

    Args:
        batches: samples per batch, (k,).
        runs: name -> accuracies from 0 to 1, shape (k, seeds).
        limits: name -> batch, drawn as a vertical line; a run's name gives its colour.
        per_rank: samples per rank; if given, the upper axis counts ranks.

    Raises:
        ValueError: accuracies of another shape.
    """
    with style.axes(width=7.6, height=4.6) as ax:
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
                elinewidth=1.2, label=name, **style.marks(number),
            )  # fmt: skip
        for number, (name, batch) in enumerate((limits or {}).items()):
            known = list(runs).index(name) if name in runs else number
            ax.axvline(batch, color=style.colour(known), linestyle="--", linewidth=1.4)
            ax.annotate(
                "its limit, predicted" if name in runs else name, (batch, 0.98), rotation=90,
                xycoords=("data", "axes fraction"), xytext=(-3, 0), textcoords="offset points",
                ha="right", va="top", size=8, color=style.colour(known),
            )  # fmt: skip
        style.log_x(ax, batches)
        style.log_y(ax)
        ax.set(title=title, xlabel=BATCH, ylabel="wrong answers (%)")
        if per_rank:
            upper = ax.secondary_xaxis("top")
            upper.set_xticks(batches, [f"{batch / per_rank:g}" for batch in batches])
            upper.xaxis.set_minor_locator(NullLocator())
            upper.set_xlabel(f"ranks of {per_rank} samples each")
        style.legend_beside(ax)
    return ax.figure


def stable_rates(
    updates: Sequence[int],
    limits: np.ndarray,
    asked: Mapping[str, float],
    title: str = "The largest stable rate while the network learns",
) -> style.Figure:
    """The largest stable learning rate during training, one line per run, and requested rates.

    Args:
        updates: after how many updates the limits were found, (k,), 1 or more each.
        limits: learning rates, shape (runs, k).
        asked: name -> learning rate, drawn as a horizontal line.
    """
    with style.axes(width=7.6) as ax:
        for number, limit in enumerate(np.asarray(limits, float)):
            look = style.marks(number) | {"color": style.MEASURED, "linestyle": "-"}
            label = None if number else "limit, measured (line per seed)"
            ax.plot(updates, limit, linewidth=0.8, label=label, **look)
        for name, rate in asked.items():
            ax.axhline(rate, color=style.PREDICTED, linestyle="--", linewidth=1.4)
            ax.annotate(
                f"{name}: {rate:.2g}", (1, rate), xycoords=("axes fraction", "data"),
                xytext=(4, 0), textcoords="offset points", va="center", size=9,
            )  # fmt: skip
        style.log_x(ax, updates, base=10)
        style.log_y(ax)
        ax.set(title=title, xlabel="updates", ylabel="learning rate")
        ax.set_ylim(0.6 * ax.get_ylim()[0])  # room for the legend
        ax.legend(loc="lower left")
    return ax.figure


def records(
    rows: Sequence[tuple[str, Mapping[str, float]]],
    title: str = "Fewer steps, more samples per second: where the hour went",
) -> style.Figure:
    """Training runs as rows, one panel per quantity, on logarithmic axes.

    Args:
        rows: (label, quantity with its unit -> number above 0), all with the same quantities.
    """
    names = list(rows[0][1])
    for label, row in rows:
        if list(row) != names:
            raise ValueError(f"{label} must have {', '.join(names)}; got {', '.join(row)}")
    labels, at = [label for label, _ in rows], np.arange(len(rows))
    with style.panels(1, len(names), 3.3, 1.2 + 0.36 * len(rows), sharey=True) as (figure, axes):
        for number, (ax, name) in enumerate(zip(axes[0], names, strict=True)):
            values = np.array([row[name] for _, row in rows], float)
            ax.plot(values, at, **style.marks(number))
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
