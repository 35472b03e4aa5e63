"""Figures of staleness: stable rates, paths with delayed gradients, how old gradients are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tutorial_dl import figure_style as style

__all__ = [
    "delay_map", "delayed_paths", "largest_rates", "random_order", "staleness_histogram",
]  # fmt: skip


def delay_map(
    rates: np.ndarray,
    growth: np.ndarray,
    bound: np.ndarray,
    measured: Sequence[tuple[float, int, bool]] = (),
    title: str = "The older the gradient, the shorter the step must be",
) -> style.Figure:
    """The factor by which each update multiplies the error, over rate and delay, and the bound.

    Args:
        rates: eta h, learning rate times curvature, (k,), evenly spaced.
        growth: factor per update, shape (delays, k), for delays of 0, 1, 2, ... updates.
        bound: the largest stable eta h for each delay, (delays,).
        measured: (eta h, delay, whether it converged) of each run.
        title: the figure's title.
    """
    delays, half = len(growth), (rates[1] - rates[0]) / 2
    with style.axes(width=7.2, height=4.4) as ax:
        picture = ax.imshow(
            growth, origin="lower", aspect="auto", cmap="PuOr_r", vmin=0.5, vmax=1.5,
            extent=(rates[0] - half, rates[-1] + half, -0.5, delays - 0.5),
        )  # fmt: skip
        ax.figure.colorbar(picture, ax=ax, label="growth of the error per update", extend="both")
        # One step per delay: the bound belongs to the whole row.
        ax.step(
            np.repeat(bound, 2), np.ravel([[d - 0.5, d + 0.5] for d in range(delays)]),
            color=style.PREDICTED, label="bound, predicted",
        )  # fmt: skip
        for works, marker, label in ((True, "o", "run: converged"), (False, "X", "run: diverged")):
            at = [(rate, delay) for rate, delay, converged in measured if converged == works]
            if at:
                ax.plot(
                    *np.transpose(at), marker, color=style.BLUE if works else style.RED,
                    markeredgecolor="white", markersize=8, label=label,
                )  # fmt: skip
        ax.set(title=title, xlabel="learning rate · curvature", ylabel="delay (updates)")
        ax.set_xlim(rates[0] - half, rates[-1] + half)
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(visible=False)
        ax.legend(loc="upper right")
    return ax.figure


def delayed_paths(
    predicted: Mapping[str, np.ndarray],
    measured: Mapping[str, np.ndarray],
    title: str = "On the bound, x oscillates for ever",
    ax: Axes | None = None,
) -> style.Figure:
    """Paths by update: predicted as lines, measured as markers (every few updates).

    Args:
        predicted, measured: name -> x after each update, (t,); the same names.
        title: the figure's title.
        ax: where to draw; a new figure if None.
    """
    if set(predicted) != set(measured):
        raise ValueError(
            "predicted and measured must have the same names; got "
            f"{sorted(predicted)} and {sorted(measured)}"
        )
    with style.axes(ax, width=7.2) as ax:
        for number, (name, path) in enumerate(predicted.items()):
            colour = style.COLOURS[number % len(style.COLOURS)]
            ax.plot(path, color=colour, linestyle=style.LINES[number % len(style.LINES)])
            ax.plot(
                measured[name], linestyle="none", color=colour, label=name,
                marker=style.MARKERS[number % len(style.MARKERS)],
                markevery=max(1, len(path) // 30),
            )  # fmt: skip
        ax.set(title=title, xlabel="updates (lines: predicted)", ylabel="x")
        ax.legend()
    return ax.figure


def random_order(
    paths: np.ndarray,
    momentum: np.ndarray,
    alone: np.ndarray,
    title: str = "On average, workers in random order act like momentum",
    shown: int = 30,
    ax: Axes | None = None,
) -> style.Figure:
    """Paths of runs with workers in random order, their mean, and what was predicted for it.

    Args:
        paths: x after each update, shape (runs, t).
        momentum: x of one process with the implicit momentum, (t,).
        alone: x of one process with the same rate and no momentum, (t,).
        title: the figure's title.
        shown: how many runs are drawn.
        ax: where to draw; a new figure if None.
    """
    mean = np.mean(paths, axis=0)
    with style.axes(ax, width=7.2) as ax:
        ax.plot(np.transpose(paths[:shown]), color=style.GREY, linewidth=0.5, alpha=0.5)
        ax.plot([], color=style.GREY, linewidth=0.5, label="one order")
        ax.plot(momentum, color=style.PREDICTED, label="momentum, predicted")
        ax.plot(alone, color=style.ORANGE, linestyle="--", label="one process, no momentum")
        ax.plot(mean, "o", color=style.MEASURED, label=f"mean of {len(paths)} orders")
        reach = 1.5 * np.abs(momentum).max()  # single runs may go farther
        ax.set(title=title, xlabel="updates", ylabel="x", ylim=(-reach, reach))
        ax.legend()
    return ax.figure


def largest_rates(
    momenta: np.ndarray,
    rates: Mapping[int, np.ndarray],
    title: str = "Momentum widens the bound, until one gradient is old",
    ax: Axes | None = None,
) -> style.Figure:
    """The largest stable rate by momentum, one line per delay.

    Args:
        momenta: (k,).
        rates: delay -> largest stable eta h, (k,).
        title: the figure's title.
        ax: where to draw; a new figure if None.
    """
    with style.axes(ax) as ax:
        for number, (delay, largest) in enumerate(rates.items()):
            ax.plot(
                momenta, largest, color=style.COLOURS[number % len(style.COLOURS)],
                linestyle=style.LINES[number % len(style.LINES)], label=f"delay {delay}",
            )  # fmt: skip
        ax.set(title=title, xlabel="momentum", ylabel="largest stable rate · curvature")
        ax.set_yscale("log")
        shown = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4]
        low, high = ax.get_ylim()
        shown = [tick for tick in shown if low <= tick <= high]
        ax.set_yticks(shown, [f"{tick:g}" for tick in shown])
        ax.minorticks_off()
        ax.legend(loc="lower left")
    return ax.figure


def staleness_histogram(
    updates: Mapping[int, int],
    predicted: Mapping[str, np.ndarray],
    title: str = "How old gradients are",
    ax: Axes | None = None,
) -> style.Figure:
    """The share of updates by their staleness: measured as bars, predicted as lines.

    Args:
        updates: staleness -> how many updates had it, as in `history.staleness`.
        predicted: name -> shares for a staleness of 0, 1, 2, ... The axis ends where
            these do; the legend tells how many updates were older.
        title: the figure's title.
        ax: where to draw; a new figure if None.
    """
    total = sum(updates.values())
    if not total:
        raise ValueError("no updates: a histogram needs at least one")
    mean = sum(age * count for age, count in updates.items()) / total
    last = max((len(shares) for shares in predicted.values()), default=max(updates) + 1) - 1
    older = sum(count for age, count in updates.items() if age > last)
    label = f"measured, mean {mean:.2f}" + (f"\n({older} of {total} beyond {last})" * bool(older))
    with style.axes(ax) as ax:
        ages = [age for age in sorted(updates) if age <= last]
        ax.bar(
            ages, [updates[age] / total for age in ages], color=style.MEASURED, alpha=0.7,
            label=label,
        )  # fmt: skip
        for number, (name, shares) in enumerate(predicted.items()):
            ax.plot(
                shares, color=(style.PREDICTED, style.ORANGE, style.GREEN)[number % 3],
                linestyle=style.LINES[number % len(style.LINES)], marker=".", label=name,
            )  # fmt: skip
        ax.set(title=title, xlabel="staleness (updates)", ylabel="share of the updates")
        ax.set_xlim(-0.6, last + 0.6)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend()
    return ax.figure
