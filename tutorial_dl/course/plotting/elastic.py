"""Figures of elastic averaging (EASGD): paths, noise of the center, traffic by period."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tutorial_dl import figure_style as style

__all__ = ["center_noise", "periods", "springs"]


def springs(
    runs: Mapping[str, tuple[np.ndarray, np.ndarray]],
    curvature: Sequence[float],
    rests: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    minima: np.ndarray | None = None,
) -> style.Figure:
    """Paths of workers and their center in a valley of two weights, one panel per run.

    Args:
        runs: name -> (weights of the workers (t, p, 2), weights of the center (t, 2)).
        curvature: of the valley along each weight; its minimum is at 0.
        rests: name -> predicted ends of the workers (p, 2) and the center (2,), drawn as crosses.
        minima: the minimum of each worker's own data, (p, 2), drawn as small forks.
    """
    every = np.concatenate(
        [np.concatenate([x.reshape(-1, 2), center]) for x, center in runs.values()]
        + ([] if minima is None else [np.asarray(minima)])
    )
    low, high = every.min(axis=0), every.max(axis=0)
    low, high = low - 0.08 * (high - low), high + 0.08 * (high - low)
    across, up = (np.linspace(low[k], high[k], 80) for k in (0, 1))
    loss = (curvature[0] * across**2 + curvature[1] * up[:, None] ** 2) / 2
    with style.panels(1, len(runs), width=5.0, height=4.2, sharey=True) as (figure, axes):
        for ax, (name, (x, center)) in zip(axes[0], runs.items(), strict=True):
            ax.contour(across, up, loss, levels=9, colors=style.GREY, linewidths=0.5, alpha=0.6)
            for worker in range(x.shape[1]):
                colour = style.COLOURS[worker % (len(style.COLOURS) - 1)]  # black is for the center
                ax.plot(*x[:, worker].T, color=colour, linewidth=1)
                look = style.marks(worker) | {"color": colour, "markersize": 7}
                ax.plot(*x[-1, worker], label=f"worker {worker}", **look)
                if rests and name in rests:  # a spring
                    ends = np.array([x[-1, worker], center[-1]])
                    ax.plot(*ends.T, ":", color=colour, linewidth=1.4)
                if minima is not None:
                    ax.plot(*minima[worker], "1", color=colour, markersize=11)
            ax.plot(*center.T, color=style.BLACK, linewidth=2.2)
            ax.plot(*center[-1], "*", color=style.BLACK, markersize=13, label="center")
            if rests and name in rests:
                at = np.concatenate([rests[name][0], [rests[name][1]]])
                ax.plot(*at.T, "+", color=style.PREDICTED, markersize=12, label="predicted")
            ax.set(title=name, xlabel="weight 1", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
            ax.grid(visible=False)
        axes[0, 0].set_ylabel("weight 2")
        style.legend_beside(axes[0, -1])
    return figure


def center_noise(
    moving_rates: np.ndarray,
    predicted: Mapping[str, np.ndarray],
    measured: Mapping[str, np.ndarray],
    levels: Mapping[str, float],
    title: str = "The center averages over workers, and over time",
) -> style.Figure:
    """How much gradient noise shakes the center, by the moving rate.

    Args:
        moving_rates: (k,), drawn on a logarithmic axis.
        predicted, measured: name -> standard deviation, (k,); the same names.
        levels: name -> standard deviation, drawn as a horizontal line.
    """
    with style.axes() as ax:
        style.predicted_measured_each(ax, moving_rates, predicted, measured)
        for name, level in levels.items():
            style.level(ax, level, name)
        ax.set(title=title, xlabel="moving rate (lines: predicted)", ylim=(0, None))
        style.log_x(ax, moving_rates, base=10)
        ax.set_ylabel("standard deviation of the center")
        ax.legend(loc="lower right")
    return ax.figure


def periods(
    every: Sequence[int],
    predicted: Sequence[float],
    measured: Sequence[float],
    losses: Mapping[str, Sequence[float]],
    titles: tuple[str, str] = ("Traffic falls with the period", "The loss hardly notices"),
) -> style.Figure:
    """Traffic and loss by the period: the steps from one exchange to the next.

    Args:
        every: steps, (k,).
        predicted, measured: megabytes sent in the whole run, (k,) each.
        losses: name -> validation loss at the end, (k,).
        titles: the titles of both panels.
    """
    with style.panels(1, 2, width=4.8, height=3.6) as (figure, ((left, right),)):
        style.predicted_measured(left, every, predicted, measured)
        left.set(title=titles[0], ylabel="megabytes per run", yscale="log")
        left.legend()
        for number, (name, values) in enumerate(losses.items()):
            right.plot(every, values, **style.marks(number) | {"linestyle": "-"}, label=name)
        highest = max(max(values) for values in losses.values())
        right.set(title=titles[1], ylabel="validation loss", ylim=(0, 1.3 * highest))
        right.legend()
        for ax in (left, right):
            style.log_x(ax, every)
            ax.set_xlabel("steps from one exchange to the next")
    return figure
