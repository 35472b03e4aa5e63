"""Figures of staleness: stable rates, paths with delayed gradients, how old gradients are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
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
) -> style.Figure:
    """Paths by update: predicted as lines, measured as markers (every few updates).

    Args:
        predicted, measured: name -> x after each update, (t,); the same names.
    """
    with style.axes(width=7.2) as ax:
        updates = len(next(iter(predicted.values())))
        style.predicted_measured_each(
            ax, range(updates), predicted, measured, every=max(1, updates // 30)
        )
        ax.set(title=title, xlabel="updates (lines: predicted)", ylabel="x")
        ax.legend()
    return ax.figure


def random_order(
    paths: np.ndarray,
    momentum: np.ndarray,
    alone: np.ndarray,
    title: str = "On average, workers in random order act like momentum",
    shown: int = 30,
) -> style.Figure:
    """Paths of runs with workers in random order, their mean, and what was predicted for it.

    Args:
        paths: x after each update, shape (runs, t).
        momentum: x of one process with the implicit momentum, (t,).
        alone: x of one process with the same rate and no momentum, (t,).
        shown: how many runs are drawn.
    """
    mean = np.mean(paths, axis=0)
    with style.axes(width=7.2) as ax:
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
) -> style.Figure:
    """The largest stable rate by momentum, one line per delay.

    Args:
        momenta: (k,).
        rates: delay -> largest stable eta h, (k,).
    """
    with style.axes() as ax:
        for number, (delay, largest) in enumerate(rates.items()):
            ax.plot(momenta, largest, label=f"delay {delay}", **style.line(number))
        ax.set(title=title, xlabel="momentum", ylabel="largest stable rate · curvature")
        style.log_y(ax)
        ax.legend(loc="lower left")
    return ax.figure


def staleness_histogram(
    updates: Mapping[int, int],
    predicted: Mapping[str, np.ndarray],
    title: str = "How old gradients are",
) -> style.Figure:
    """The share of updates by their staleness: measured as bars, predicted as lines.

    Args:
        updates: staleness -> how many updates had it, as in `history.staleness`.
        predicted: name -> shares for a staleness of 0, 1, 2, ... The axis ends where
            these do; the legend tells how many updates were older.
    """
    total = sum(updates.values())
    if not total:
        raise ValueError("no updates: a histogram needs at least one")
    mean = sum(age * count for age, count in updates.items()) / total
    last = max((len(shares) for shares in predicted.values()), default=max(updates) + 1) - 1
    older = sum(count for age, count in updates.items() if age > last)
    label = f"measured, mean {mean:.2f}" + (f"\n({older} of {total} beyond {last})" * bool(older))
    with style.axes() as ax:
        ages = [age for age in sorted(updates) if age <= last]
        ax.bar(
            ages, [updates[age] / total for age in ages], color=style.MEASURED, alpha=0.7,
            label=label,
        )  # fmt: skip
        for number, (name, shares) in enumerate(predicted.items()):
            colour = (style.PREDICTED, style.ORANGE, style.GREEN)[number % 3]
            ax.plot(shares, marker=".", label=name, **style.line(number) | {"color": colour})
        ax.set(title=title, xlabel="staleness (updates)", ylabel="share of the updates")
        ax.set_xlim(-0.6, last + 0.6)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend()
    return ax.figure
