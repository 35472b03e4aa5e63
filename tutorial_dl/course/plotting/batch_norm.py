"""Figures of batch normalisation over ranks: statistics of a share, and moving statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tutorial_dl import figure_style as style

__all__ = ["moving_statistics", "normalised_apart", "share_statistics"]


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
            left.errorbar(
                row.mean(), place + 0.28, xerr=row.std(), fmt="d", color=colour, capsize=3
            )
            wide = place == len(shares)
            right.plot(
                ends, (ends - row.mean()) / row.std(), color=colour, linewidth=3 if wide else 1.6,
                linestyle=style.LINES[0 if wide else 1 + place % 6], label=names[place],
            )  # fmt: skip
            right.plot(sample, outputs[place], "o", color=colour, zorder=3)
        for ax in (left, right):
            ax.axvline(sample, color=style.GREY, linewidth=1)
        left.set(title="Mean and standard deviation", xlabel="input x", ylabel="")
        left.set_yticks(range(len(rows)), names)
        left.invert_yaxis()
        right.set(
            title=f"One sample becomes {min(outputs):.2f} to {max(outputs):.2f}",
            xlabel="input x", ylabel="normalised output y",
        )  # fmt: skip
        right.legend(loc="upper left")
        right.annotate(
            "the sample", (sample, 0), color=style.GREY, xycoords=("data", "axes fraction"),
            xytext=(4, 2), textcoords="offset points", va="bottom",
        )  # fmt: skip
    return figure


def share_statistics(
    sizes: np.ndarray,
    predicted: Sequence[np.ndarray],
    measured: Sequence[np.ndarray],
) -> style.Figure:
    """How far a share's mean, variance and outputs are from the batch's, by the share's size.

    Args:
        sizes: samples per share, shape (k,).
        predicted, measured: three arrays (k,) each: the root mean square distance of the mean, in
            units of S; the mean variance, in units of S^2; the root mean square distance of
            outputs.
    """
    titles = (
        "The mean is off at random",
        "The variance is too small",
        "So the outputs are off",
    )
    units = ("distance of the mean / S", "variance / S²", "distance of the outputs")
    with style.panels(1, 3, width=3.9, height=3.4) as (figure, axes):
        for ax, title, unit, line, points in zip(
            axes[0], titles, units, predicted, measured, strict=True
        ):
            style.predicted_measured(ax, sizes, line, points)
            style.log_x(ax, sizes)
            ax.set(title=title, xlabel="samples per rank", ylabel=unit, ylim=(0, None))
            ax.legend(loc="lower right" if "small" in title else "upper right")
    return figure


def moving_statistics(
    ranks: np.ndarray,
    predicted: Mapping[str, np.ndarray],
    measured: Mapping[str, np.ndarray],
    title: str = "Moving statistics: the average over ranks beats any single rank",
) -> style.Figure:
    """How far moving means are from the mean of all data, by the number of ranks.

    Args:
        ranks: shape (k,).
        predicted, measured: legend entry -> root mean square distance in units of the standard
            deviation, shape (k,); the same entries in both.
    """
    with style.axes() as ax:
        style.predicted_measured_each(ax, ranks, predicted, measured)
        style.log_x(ax, ranks)
        style.log_y(ax, (1, 2, 3, 5, 7))
        ax.set(title=title, xlabel="ranks (lines: predicted)", ylabel="distance of the moving mean")
        ax.legend(loc="lower left")
    return ax.figure
