"""Figures of a search: what a grid and random draws see, how a Gaussian process chooses."""

from collections.abc import Mapping, Sequence

import numpy as np

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Numbers


def grid_and_random(
    sets: Mapping[str, np.ndarray], merit, names: tuple[str, str] = ("matters", "does not")
) -> style.Figure:
    """Sets of two values in the unit square, and what they show of the one that matters.

    Args:
        sets: name -> points, shape (n, 2); a panel each.
        merit: the function of the first value, drawn above the square.
        names: of the two values.
    """
    look = {"sharex": True, "height_ratios": [1, 2]}
    with style.panels(2, len(sets), 3.2, 1.8, **look) as (figure, axes):
        line = np.linspace(0, 1, 200)
        for (name, points), above, below in zip(sets.items(), *axes, strict=True):
            x = points[:, 0]
            above.plot(line, merit(line), color=style.GREY)
            above.plot(x, merit(x), "o", color=style.MEASURED)
            above.set_title(f"{name}: {len(set(np.round(x, 9)))} different values")
            above.set_yticks([])
            below.plot(*points.T, "o", color=style.MEASURED)
            below.vlines(x, points[:, 1], 1.05, color=style.GREY, linewidth=0.7)
            below.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), xlabel=names[0], ylabel=names[1])
    return figure


def process_steps(steps: Sequence[Mapping[str, Numbers]], xlabel: str, ylabel: str):
    """How a Gaussian process chooses, a column per step.

    A step has `grid` (s,), `mean`, `deviation` and `improvement` (s,) there, the points measured so
    far, `x` and `y` (n,), and `next`, where the next one is measured.
    """
    look = {"sharex": True, "sharey": "row", "height_ratios": [3, 2]}
    with style.panels(2, len(steps), 2.9, 1.9, **look) as (figure, axes):
        for step, above, below in zip(steps, *axes, strict=True):
            grid, mean, deviation = step["grid"], step["mean"], step["deviation"]
            look = {"color": style.SKY, "alpha": 0.35, "linewidth": 0}
            ends = mean - 2 * deviation, mean + 2 * deviation
            above.fill_between(grid, *ends, label="mean ± 2 deviations", **look)
            above.plot(grid, mean, color=style.PREDICTED, label="mean")
            above.plot(step["x"], step["y"], "o", color=style.MEASURED, label="measured")
            gain = step["improvement"]
            below.plot(grid, gain, color=style.GREEN, label="expected improvement")
            for ax in (above, below):
                ax.axvline(step["next"], color=style.GREY, linestyle="--", linewidth=1)
            above.set_title(f"{len(step['x'])} trainings")
            below.set(xlabel=xlabel)
        axes[0][0].set_ylabel(ylabel)
        lines = [*axes[0][0].get_legend_handles_labels()[0], *axes[1][0].lines[:1]]
        figure.legend(handles=lines, loc="outside lower center", ncols=4)
    return figure


@style.one_panel("How far from the minimum", "", "regret")
def regrets(ax, curves: Mapping[str, tuple[Numbers, Numbers]], xlabel: str = "trials"):
    """Regret by trials or by time, on logarithmic axes: name -> (x, regret), each (k,)."""
    for number, (name, (x, regret)) in enumerate(curves.items()):
        ax.loglog(x, np.maximum(regret, 1e-9), label=name, **style.line(number))
    ax.set_xlabel(xlabel)


@style.one_panel("How far estimates are off", "estimated accuracy - true accuracy", legend=None)
def estimates(ax, errors: Mapping[str, np.ndarray], predicted: Mapping[str, float]):
    """Errors of each kind of estimate, any shape, and their predicted standard deviation."""
    shift = np.random.default_rng(0)
    for row, (name, off) in enumerate(errors.items()):
        flat = np.ravel(off)
        ax.plot(flat, row + shift.uniform(-0.22, 0.22, flat.size), ".", color=style.MEASURED)
        for side in (-1, 1):
            x = side * predicted[name]
            ax.vlines(x, row - 0.36, row + 0.36, color=style.PREDICTED)
            style.note(ax, f"{x:+.3f}", (x, row - 0.36), (0, 3), ha="center", size=9)
    style.rows(ax, list(errors))
    ax.axvline(0, color=style.GREY, linewidth=1)


def winners(
    x: Numbers, chosen: Mapping[str, np.ndarray], truth: Numbers, xlabel: str
) -> style.Figure:
    """True accuracies by a parameter, (k,), and how often each value was chosen.

    Args:
        x: the values, (k,), on a logarithmic axis.
        chosen: way to choose -> the indices of its winners, (n,).
        truth: the true accuracy with each value, (k,).
    """
    with style.panels(2, 1, height=2.1, sharex=True) as (figure, axes):
        above, below = axes[:, 0]
        places, width = np.arange(len(x)), 0.8 / len(chosen)
        above.plot(places, truth, "o-", color=style.PREDICTED)
        above.set(ylabel="true accuracy", title="What is best, and what is chosen")
        for number, (name, indices) in enumerate(chosen.items()):
            share = np.bincount(indices, minlength=len(x)) / len(indices)
            left = places + (number - (len(chosen) - 1) / 2) * width
            look = {"color": style.colour(number), "edgecolor": "white"}
            look |= {"label": name, "hatch": (None, "///")[number % 2]}
            below.bar(left, share, width, **look)
        below.set(xlabel=xlabel, ylabel="share of winners")
        below.set_xticks(places, [f"{value:g}" for value in x])
        below.legend()
    return figure
