"""Figures of neural networks as functions: their parts, how well they fit, how they learn."""

from collections.abc import Mapping

import numpy as np

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Lines


@style.one_panel("Eight hinges, added up, follow the curve", "x", "y", legend="beside")
def hinges(ax, grid: np.ndarray, terms: np.ndarray, truth: np.ndarray):
    """The terms that a network with one hidden layer adds up, their sum, and its target, (s,).

    `terms`, (s, units + 1), are the output of each hidden unit times its output weight, at the x of
    `grid`, (s,); the last column is the bias.
    """
    for i, term in enumerate(terms.T[:-1]):
        label = "one hidden unit each" if i == 0 else None
        ax.plot(grid, term, color=style.SKY, linewidth=1, label=label)
    ax.plot(grid, truth, color=style.GREY, linewidth=5, alpha=0.35, label="target")
    ax.plot(grid, terms.sum(axis=1), color=style.BLUE, label="their sum: the network")
    low, high = truth.min(), truth.max()
    ax.set_ylim(low - 0.6 * (high - low), high + 0.6 * (high - low))


def gradient_check(
    predicted: np.ndarray, measured: np.ndarray, groups: Mapping[str, slice]
) -> style.Figure:
    """Each element of a gradient, its finite difference over backpropagation's; the difference.

    Gradients have shape (n,); `groups` is legend entry -> which of the n elements.
    """
    with style.panels(2, 1, height=2.6, sharex=True, height_ratios=[2, 1]) as (figure, grid):
        values, differences = grid[:, 0]
        ends = [predicted.min(), predicted.max()]
        values.plot(ends, ends, color=style.PREDICTED, linewidth=1, label="equal")
        differences.axhline(0, color=style.PREDICTED, linewidth=1)
        for number, (label, which) in enumerate(groups.items()):
            look = style.marks(number)
            values.plot(predicted[which], measured[which], label=label, **look)
            differences.plot(predicted[which], (measured - predicted)[which], **look)
        values.set_title("Backpropagation agrees with finite differences")
        values.set_ylabel("measured: finite difference")
        values.legend()
        differences.set(xlabel="predicted: backpropagation", ylabel="difference")
        differences.ticklabel_format(axis="y", useMathText=True)  # × 10⁻¹¹, not 1e-11
    return figure


@style.one_panel(
    "Large steps: truncation error, small steps: rounding error",
    "step h", "error of the finite difference", xscale="log", yscale="log",
)  # fmt: skip
def step_errors(
    ax, steps: np.ndarray, errors: np.ndarray, truncation: np.ndarray, rounding: np.ndarray
):
    """|Finite difference - derivative| by its step, (n,), and the two errors predicted for it."""
    ax.plot(steps, truncation, color=style.BLACK, label="predicted: h² |L'''| / 6")
    ax.plot(steps, rounding, color=style.BLACK, linestyle="--", label="predicted: ε L / h")
    ax.plot(steps, errors, "o", color=style.MEASURED, label="measured")
    ax.set_yscale("log")
    ax.set_ylim(errors[errors > 0].min() / 10, errors.max() * 10)


def training_strip(
    x: np.ndarray, y: np.ndarray, snapshots: Lines, grid: np.ndarray, truth: np.ndarray, title: str
) -> style.Figure:
    """A film strip: the function that a network computes, one panel per moment of its training.

    Args:
        x, y: training samples, shape (s,).
        snapshots: caption -> the network's output on `grid`, shape (m,), in order of time.
        grid: where the function is drawn, shape (m,).
        truth: the function that the samples were drawn from, without noise, shape (m,).
    """
    look = {"sharex": True, "sharey": True, "title": title}
    with style.panel_each(snapshots, 3, 3, 2.2, **look) as (figure, panels):
        for caption, ax in panels.items():
            ax.plot(x, y, ".", color=style.GREY, markersize=3, label="samples")
            ax.plot(grid, truth, color=style.GREY, linewidth=5, alpha=0.35, label="truth")
            ax.plot(grid, snapshots[caption], color=style.BLUE, label="network")
            ax.set_title(caption, fontsize=10, fontweight="normal")
            ax.set(xlabel="x", ylabel="y")
            ax.label_outer()
        margin = 0.25 * np.ptp(y)
        ax.set_ylim(y.min() - margin, y.max() + margin)
        style.legend_below(ax, 3)
    return figure
