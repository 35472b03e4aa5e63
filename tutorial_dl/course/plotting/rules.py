"""Figures of asynchronous rules: staleness, elastic averaging (EASGD), gradient energy matching."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Lines, Numbers
from tutorial_dl.words import counted

# Staleness -------------------------------------------------------------------------------------


@style.one_panel(
    "The older the gradient, the shorter the step must be",
    "learning rate · curvature", "delay (updates)",
    width=7.2, height=4.4, legend="upper right",
)  # fmt: skip
def delay_map(
    ax, rates: Numbers, growth: np.ndarray, bound: Numbers,
    measured: Sequence[tuple[float, int, bool]] = (),
):  # fmt: skip
    """The factor by which each update multiplies the error, over rate and delay, and the bound.

    Args:
        rates: eta h, learning rate times curvature, (k,), evenly spaced.
        growth: factor per update, shape (delays, k), for delays of 0, 1, 2, ... updates.
        bound: the largest stable eta h for each delay, (delays,).
        measured: (eta h, delay, whether it converged) of each run.
    """
    delays, half = len(growth), (rates[1] - rates[0]) / 2
    picture = ax.imshow(
        growth, origin="lower", aspect="auto", cmap="PuOr_r", vmin=0.5, vmax=1.5,
        extent=(rates[0] - half, rates[-1] + half, -0.5, delays - 0.5),
    )  # fmt: skip
    ax.figure.colorbar(picture, ax=ax, label="growth of the error per update", extend="both")
    # One step per delay: the bound belongs to the whole row.
    edges = np.ravel([[d - 0.5, d + 0.5] for d in range(delays)])
    ax.step(np.repeat(bound, 2), edges, color=style.PREDICTED, label="bound, predicted")
    for what, marker, colour in (("converged", "o", style.BLUE), ("diverged", "X", style.RED)):
        at = [run[:2] for run in measured if run[2] == (what == "converged")]
        if at:
            look = {"markeredgecolor": "white", "markersize": 8, "label": f"run: {what}"}
            ax.plot(*np.transpose(at), marker, color=colour, **look)
    ax.set_xlim(rates[0] - half, rates[-1] + half)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(visible=False)


@style.one_panel("On average, workers in random order act like momentum", "updates", "x", width=7.2)
def random_order(ax, paths: np.ndarray, momentum: Numbers, alone: Numbers):
    """Paths of 30 runs with workers in random order, the mean of all, and its prediction.

    `paths` has shape (runs, t). One process has the same rate, with the implicit momentum, (t,), or
    none (`alone`).
    """
    ax.plot(np.transpose(paths[:30]), color=style.GREY, linewidth=0.5, alpha=0.5)
    ax.plot([], color=style.GREY, linewidth=0.5, label="one order")
    ax.plot(momentum, color=style.PREDICTED, label="momentum, predicted")
    ax.plot(alone, color=style.ORANGE, linestyle="--", label="one process, no momentum")
    mean = np.mean(paths, axis=0)
    ax.plot(mean, "o", color=style.MEASURED, label=f"mean of {len(paths)} orders")
    reach = 1.5 * np.abs(momentum).max()  # single runs may go farther
    ax.set_ylim(-reach, reach)


@style.one_panel("How old gradients are", "staleness (updates)", "share of the updates")
def staleness_histogram(ax, updates: Mapping[int, int], predicted: Lines):
    """The share of updates by their staleness: measured as bars, predicted as lines.

    `updates` is staleness -> how many had it, as in `history.staleness`; `predicted` has shares for
    0, 1, 2, ... by name. The axis ends where these do; the legend tells how many were older.
    """
    total = sum(updates.values())
    if not total:
        raise ValueError("no updates: a histogram needs at least one")
    mean = sum(age * count for age, count in updates.items()) / total
    last = max((len(shares) for shares in predicted.values()), default=max(updates) + 1) - 1
    older = sum(count for age, count in updates.items() if age > last)
    beyond = f"\n({older:,} of {total:,} beyond {last})" if older else ""
    label = f"measured, mean {mean:.2f}{beyond}"
    ages = [age for age in sorted(updates) if age <= last]
    found = [updates[age] / total for age in ages]
    ax.bar(ages, found, color=style.MEASURED, alpha=0.7, label=label)
    for number, (name, shares) in enumerate(predicted.items()):
        colour = (style.PREDICTED, style.ORANGE, style.GREEN)[number % 3]
        ax.plot(shares, marker=".", label=name, **style.line(number) | {"color": colour})
    ax.set_xlim(-0.6, last + 0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


# Elastic averaging -----------------------------------------------------------------------------


def springs(
    runs: Mapping[str, tuple[np.ndarray, np.ndarray]],
    curvature: Sequence[float],
    rests: Mapping[str, tuple[np.ndarray, np.ndarray]],
    minima: np.ndarray,
) -> style.Figure:
    """Paths of workers and their center in a valley of two weights, one panel per run.

    Args:
        runs: name -> (weights of the workers (t, p, 2), weights of the center (t, 2)).
        curvature: of the valley along each weight; its minimum is at 0.
        rests: name -> predicted ends of the workers (p, 2) and the center (2,), drawn as crosses.
        minima: the minimum of each worker's own data, (p, 2), drawn as small forks.
    """
    parts = (part.reshape(-1, 2) for run in runs.values() for part in run)
    every = np.concatenate([*parts, minima])
    low, high = every.min(axis=0), every.max(axis=0)
    low, high = low - 0.08 * (high - low), high + 0.08 * (high - low)
    across, up = (np.linspace(low[k], high[k], 80) for k in (0, 1))
    loss = (curvature[0] * across**2 + curvature[1] * up[:, None] ** 2) / 2
    with style.panels(1, len(runs), width=5.0, height=4.2, sharey=True) as (figure, axes):
        for ax, (name, (x, center)) in zip(axes[0], runs.items(), strict=True):
            ax.contour(across, up, loss, levels=9, colors=style.GREY, linewidths=0.5, alpha=0.6)
            rest = rests.get(name)
            for worker in range(x.shape[1]):
                colour = style.COLOURS[worker % (len(style.COLOURS) - 1)]  # black is for the center
                ax.plot(*x[:, worker].T, color=colour, linewidth=1)
                look = style.marks(worker) | {"color": colour, "markersize": 7}
                ax.plot(*x[-1, worker], label=f"worker {worker}", **look)
                if rest:  # a spring
                    ends = np.array([x[-1, worker], center[-1]])
                    ax.plot(*ends.T, ":", color=colour, linewidth=1.4)
                ax.plot(*minima[worker], "1", color=colour, markersize=11)
            ax.plot(*center.T, color=style.BLACK, linewidth=2.2)
            ax.plot(*center[-1], "*", color=style.BLACK, markersize=13, label="center")
            if rest:
                at = np.concatenate([rest[0], [rest[1]]])
                ax.plot(*at.T, "+", color=style.PREDICTED, markersize=12, label="predicted")
            ax.plot([], [], "1", color=style.GREY, markersize=11, label="minimum of its data")
            ax.set(title=name, xlabel="weight 1", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
            ax.grid(visible=False)
        axes[0, 0].set_ylabel("weight 2")
        style.legend_beside(axes[0, -1])
    return figure


def periods(
    every: Sequence[int], predicted: Numbers, measured: Numbers, losses: Lines
) -> style.Figure:
    """Megabytes sent in a whole run, and validation losses at its end, by the period.

    The period is the number of steps from one exchange to the next.
    """
    with style.panels(1, 2, width=4.8, height=3.6) as (figure, ((left, right),)):
        style.predicted_measured(left, every, predicted, measured)
        left.set(title="Traffic by the period", ylabel="megabytes per run")
        style.log_y(left)
        for number, (name, values) in enumerate(losses.items()):
            right.plot(every, values, **style.marks(number) | {"linestyle": "-"}, label=name)
        highest = max(max(values) for values in losses.values())
        right.set(title="Loss at the end of the run", ylabel="validation loss")
        right.set_ylim(0, 1.3 * highest)
        for ax in (left, right):
            ax.legend()
            style.log_x(ax, every)
            ax.set_xlabel("steps from one exchange to the next")
    return figure


# Gradient energy matching ----------------------------------------------------------------------


def commits(runs: Mapping[str, tuple[np.ndarray, np.ndarray, Sequence[int]]]) -> style.Figure:
    """The weight after each update (above), and pi of each update by its worker (below).

    Args:
        runs: name -> (x before the first and after each update (t + 1,), pi (t,), the
            worker of each update (t,)); one column per run.
    """
    look = {"sharex": "col", "sharey": "row", "title": "A worker does what the others have left"}
    with style.panels(2, len(runs), 3.9, 2.4, **look) as (figure, axes):
        for (upper, lower), (name, (x, pi, workers)) in zip(axes.T, runs.items(), strict=True):
            upper.plot(x, color=style.BLACK, linewidth=1)
            for update, worker in enumerate(workers):
                look = style.marks(worker)
                upper.plot(update + 1, x[update + 1], **look)
                lower.vlines(update + 1, 0, pi[update], color=look["color"])
                first = update == list(workers).index(worker)
                lower.plot(update + 1, pi[update], label=f"worker {worker}" * first or None, **look)
            lower.set(xlabel="updates", ylim=(0, None))
            upper.set_title(name)
            lower.xaxis.set_major_locator(MaxNLocator(integer=True))
            if len(set(workers)) > 1:
                lower.legend()
        axes[0, 0].set_ylabel("x")
        axes[1, 0].set_ylabel("π")
    return figure


def kept_pace(
    runs: Mapping[str, Mapping[int, Numbers]], single: Numbers, titles: Sequence[str]
) -> style.Figure:
    """Distance from the minimum by rounds: one panel per method, one line per number of workers.

    `runs` is name -> {workers: |x| after each round, (t,)}; `single` is |x| of one process.
    """
    with style.panels(1, len(runs), width=5.0, height=3.8, sharey=True) as (figure, axes):
        for ax, (name, paths), title in zip(axes[0], runs.items(), titles, strict=True):
            for number, (workers, x) in enumerate(paths.items()):
                label = counted(workers, "worker")
                ax.plot(x, linewidth=1.4, label=label, **style.line(number))
            ax.plot(single, color=style.GREY, linewidth=4, alpha=0.4, label="one process", zorder=0)
            ax.set(title=f"{name}: {title}", xlabel="rounds (steps of each worker)", yscale="log")
            ax.set_ylim(1e-4, 1e4)
        axes[0, 0].set_ylabel("distance from the minimum")
        style.legend_below(axes[0, -1], 3)
    return figure


@style.one_panel(
    "With more workers, the others have already moved more weights",
    "share of the weights", "workers", xlim=(0, 1), height=3.2, legend="beside",
)  # fmt: skip
def shares_of_pi(ax, workers: Sequence[int], nothing: Numbers, most: Numbers):
    """Shares of the weights with pi = 0 (`nothing`), at its maximum (`most`), and between."""
    parts = {
        "π = 0: nothing left to do": nothing,
        "between": 1 - np.asarray(nothing) - np.asarray(most),
        "π at its maximum": most,
    }
    looks = zip((style.GREY, style.SKY, style.ORANGE), ("", "//", "xx"), strict=True)
    looks = [{"color": colour, "hatch": hatch} for colour, hatch in looks]
    style.stacked(ax, range(len(workers)), parts, looks)
    style.rows(ax, [f"{p}" for p in workers])
