"""Figures of neural networks as functions: their parts, and whether a gradient is right."""

from collections.abc import Mapping

import numpy as np

from tutorial_dl import figure_style as style


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
