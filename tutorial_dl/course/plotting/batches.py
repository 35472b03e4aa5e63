"""Figures of large batches: gradient noise, learning rates, records, and batch normalisation."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import NullLocator

from tutorial_dl import figure_style as style

BATCH = "batch (samples)"
FLOOR = 0.01  # %; 0% cannot be drawn on a logarithmic axis


@style.one_panel(
    "Validation error by batch", BATCH, "wrong answers (%), mean and range of the seeds",
    width=7.6, height=4.6, legend="beside", log_y_digits=(1, 2, 5),
)  # fmt: skip
def batch_errors(
    ax, batches: Sequence[int], runs: Mapping[str, np.ndarray],
    limits: Mapping[str, float] | None = None, per_rank: int | None = None,
):  # fmt: skip
    """The share of wrong answers by batch size: mean over seeds, bars from best to worst.

    Args:
        batches: samples per batch, (k,).
        runs: name -> accuracies from 0 to 1, shape (k, seeds).
        limits: name -> batch, drawn as a vertical line; a run's name gives its colour.
        per_rank: samples per rank; if given, the upper axis counts ranks.
    """
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
        bars = [mean - wrong.min(axis=1), wrong.max(axis=1) - mean]
        ax.errorbar(aside, mean, bars, elinewidth=1.2, label=name, **style.marks(number))
    for number, (name, batch) in enumerate((limits or {}).items()):
        colour = style.colour(list(runs).index(name) if name in runs else number)
        ax.axvline(batch, color=colour, linestyle="--", linewidth=1.4)
        style.note(
            ax, "its limit,\npredicted" if name in runs else name, (batch, 0.98), (-3, 0),
            ("data", "axes fraction"), ha="right", va="top", size=8, color=colour,
        )  # fmt: skip
    style.log_x(ax, batches)
    if per_rank:
        # The same axis again. Matplotlib's own functions for that can't be pickled.
        upper = ax.secondary_xaxis("top", functions=(np.positive, np.positive))
        upper.set_xticks(batches, [f"{batch / per_rank:g}" for batch in batches])
        upper.xaxis.set_minor_locator(NullLocator())
        upper.set_xlabel(f"ranks of {per_rank} samples each")


@style.one_panel(
    "The largest stable rate while the network learns", "updates", "learning rate",
    width=7.6, legend="lower left",
)  # fmt: skip
def stable_rates(ax, updates: Sequence[int], limits: np.ndarray, asked: Mapping[str, float]):
    """The largest stable learning rate during training, one line per run, and requested rates.

    Args:
        updates: after how many updates the limits were found, (k,), 1 or more each.
        limits: learning rates, shape (runs, k).
        asked: name -> learning rate, drawn as a horizontal line.
    """
    for number, limit in enumerate(np.asarray(limits, float)):
        look = style.marks(number) | {"color": style.MEASURED, "linestyle": "-"}
        label = None if number else "limit, measured (line per seed)"
        ax.plot(updates, limit, linewidth=0.8, label=label, **look)
    for name, rate in asked.items():
        ax.axhline(rate, color=style.PREDICTED, linestyle="--", linewidth=1.4)
        where = ("axes fraction", "data")
        style.note(ax, f"{name}: {rate:.2g}", (1, rate), (4, 0), where, va="center", size=9)
    style.log_x(ax, updates, base=10)
    style.log_y(ax)
    ax.set_ylim(0.4 * ax.get_ylim()[0])  # room for the legend


def records(rows: Sequence[tuple[str, Mapping[str, float]]]) -> style.Figure:
    """Training runs as rows (label, quantity with unit -> number > 0), one panel per quantity."""
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
                style.note(ax, f"{value:,.0f}", (value, y), (6, 0), va="center", size=8)
            ax.set(xscale="log", xlabel=name, xlim=(values.min() / 2, values.max() * 6))
            ax.set_yticks(at, labels)
        axes[0, 0].invert_yaxis()
        axes[0, 0].set_title("Fewer steps, more samples per second: where the hour went")
    return figure


# Batch normalisation ---------------------------------------------------------------------------


def normalised_apart(shares: Sequence[np.ndarray], sample: float) -> style.Figure:
    """One channel divided among ranks: means and deviations, and what becomes of a sample.

    Args:
        shares: the samples of each rank, shapes (s_r,), two or more samples per rank.
        sample: an input; the right panel shows what it becomes on each rank, and in the whole
            batch.
    """
    shares = [np.asarray(share, float) for share in shares]
    for rank, share in enumerate(shares):
        if len(share) < 2:
            raise ValueError(f"rank {rank} must have at least 2 samples, got {len(share)}")
    whole = np.concatenate(shares)
    rows = [*shares, whole]
    names = [*(f"rank {rank}" for rank in range(len(shares))), "whole batch"]
    colours = [style.colour(rank) for rank in range(len(shares))] + [style.BLACK]
    outputs = [(sample - row.mean()) / row.std() for row in rows]
    ends = np.array([whole.min(), whole.max()])
    with style.panels(1, 2, width=5.2, height=3.8) as (figure, ((left, right),)):
        for place, (row, colour) in enumerate(zip(rows, colours, strict=True)):
            left.plot(row, np.full(len(row), place), "o", color=colour, alpha=0.5, markersize=4)
            look = {"fmt": "d", "color": colour, "capsize": 3}
            left.errorbar(row.mean(), place + 0.28, xerr=row.std(), **look)
            look = {"linewidth": 1.6, "linestyle": style.LINES[1 + place % 6]}
            if place == len(shares):
                look = {"linewidth": 3, "linestyle": style.LINES[0]}
            line = (ends - row.mean()) / row.std()
            right.plot(ends, line, color=colour, label=names[place], **look)
            right.plot(sample, outputs[place], "o", color=colour, zorder=3)
        for ax in (left, right):
            ax.axvline(sample, color=style.GREY, linewidth=1)
            ax.set_xlabel("input x")
        left.set_title("Mean and standard deviation")
        left.set_yticks(range(len(rows)), names)
        left.invert_yaxis()
        right.set_title(f"One sample becomes {min(outputs):.2f} to {max(outputs):.2f}")
        right.set_ylabel("normalised output y")
        right.legend(loc="upper left")
        where = ("data", "axes fraction")
        style.note(right, "the sample", (sample, 0), (4, 2), where, color=style.GREY, va="bottom")
    return figure


def share_statistics(
    sizes: np.ndarray, predicted: Sequence[np.ndarray], measured: Sequence[np.ndarray]
) -> style.Figure:
    """How far a share's mean, variance and outputs are from the batch's, by the share's size.

    Args:
        sizes: samples per share, shape (k,).
        predicted, measured: three arrays (k,) each: the root mean square distance of the mean, in
            units of S; the mean variance, in units of S^2; the root mean square distance of
            outputs.
    """
    words = (
        ("The mean is off at random", "distance of the mean / S"),
        ("The variance is too small", "variance / S²"),
        ("So the outputs are off", "distance of the outputs"),
    )
    with style.panels(1, 3, width=3.9, height=3.4) as (figure, axes):
        for ax, (title, unit), *values in zip(axes[0], words, predicted, measured, strict=True):
            style.predicted_measured(ax, sizes, *values)
            style.log_x(ax, sizes)
            ax.set(title=title, xlabel="samples per rank", ylabel=unit, ylim=(0, None))
            ax.legend(loc="lower right" if "small" in title else "upper right")
    return figure
