"""Figures of a parameter server: one master and many workers, its traffic, queue and limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tutorial_dl import figure_style as style

__all__ = ["exchange_times", "many_to_few", "saturated", "service"]

COMPUTES = "#D8D8D8"


def many_to_few(workers: int = 6) -> style.Figure:
    """A master with its workers beside a ring of as many ranks, and the busiest rank's traffic.

    Args:
        workers: W, 2 or more. The right panel has up to W workers: 2 W vectors go through the
            master; a rank of an allreduce sends 2 (W - 1) / W and receives as many.

    Raises:
        ValueError: fewer than 2 workers.
    """
    if workers < 2:
        raise ValueError(f"workers must be at least 2, got {workers}")
    with style.panels(1, 3, width=3.6, height=3.4) as (figure, ((star, ring, lines),)):
        angles = np.pi / 2 - 2 * np.pi * np.arange(workers) / workers
        places = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # (W, 2)
        for place in places:
            _arrow(star, place, np.zeros(2), style.BLUE)
            _arrow(star, np.zeros(2), place, style.RED)
        for place, after in zip(places, np.roll(places, -1, axis=0), strict=True):
            _arrow(ring, place, after, style.GREEN)
        _rank(star, (0, 0), "M")
        for ax in (star, ring):
            for number, place in enumerate(places):
                _rank(ax, place, f"{number}")
            ax.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal")
            ax.set_axis_off()
        star.set_title("All through one master", loc="center")
        ring.set_title("Allreduce: from rank to rank", loc="center")
        handles = [
            Line2D([], [], color=colour, marker=">", label=label)
            for colour, label in (
                (style.BLUE, "gradient to the master"),
                (style.RED, "weights back"),
                (style.GREEN, "pieces of the sum"),
            )
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=3)

        many = np.arange(2, workers + 1)
        lines.plot(many, 2 * many, color=style.BLUE, marker="o", label="master: 2W")
        each = 4 * (many - 1) / many
        lines.plot(
            many, each, color=style.GREEN, marker="^", linestyle="--", label="ring: 4(W-1)/W"
        )
        lines.set(
            title="Vectors in and out of the busiest rank",
            xlabel="ranks that compute, W", ylabel="vectors per round", ylim=(0, None),
        )  # fmt: skip
        lines.set_xticks(many)
        lines.legend()
    return figure


def service(
    runs: Mapping[str, tuple[Sequence[Sequence[float]], int]], until: float
) -> style.Figure:
    """What the master and each worker do over time, one panel per run.

    Args:
        runs: title -> (rows of `foundations.first_come_first_served`, number of workers).
        until: how many seconds are shown.
    """
    lines = [workers + 2 for _, workers in runs.values()]
    height = 0.26 * np.mean(lines) + 0.4  # inches per panel, on average
    with style.panels(len(runs), 1, width=8.4, height=height, sharex=True, height_ratios=lines) as (
        figure,
        grid,
    ):
        for ax, (title, (rows, workers)) in zip(grid[:, 0], runs.items(), strict=True):
            free = [0.0] * workers  # when each worker began to compute
            for worker, asked, taken, done in rows:
                worker = int(worker)
                _bar(ax, worker + 1, free[worker], asked, COMPUTES, "")
                _bar(ax, worker + 1, asked, taken, "white", "///")
                for row in (0, worker + 1):
                    _bar(ax, row, taken, done, style.colour(worker), "")
                free[worker] = done
            names = ["master", *(f"worker {worker}" for worker in range(workers))]
            ax.set_yticks(range(workers + 1), names)
            ax.set(title=title, xlim=(0, 1e3 * until), ylim=(workers + 0.6, -0.6))
            ax.grid(False, axis="y")
        grid[-1, 0].set_xlabel("milliseconds")
        handles = [
            Patch(facecolor=COMPUTES, label="computes"),
            Patch(facecolor="white", edgecolor=style.GREY, hatch="///", label="waits"),
            Patch(facecolor=style.BLUE, label="served (master: by colour of worker)"),
        ]
        figure.legend(handles=handles, loc="outside lower right", ncols=3)
    return figure


def exchange_times(
    parameters: Sequence[int],
    measured: Sequence[Sequence[float]],
    predicted: Callable[[np.ndarray], np.ndarray],
    title: str = "An exchange costs a latency, and a time per weight",
) -> style.Figure:
    """Time of one exchange by the number of weights, log-log.

    Args:
        parameters: numbers of weights n, (k,).
        measured: seconds per exchange, k rows of any length: the median is marked, and a bar
            reaches from the first to the third quartile.
        predicted: function from numbers of weights (m,) to seconds (m,): drawn as a line.
    """
    quartiles = np.array([np.quantile(row, [0.25, 0.5, 0.75]) for row in measured])  # (k, 3)
    low, middle, high = 1e3 * quartiles.T
    with style.axes() as ax:
        line = np.geomspace(min(parameters), max(parameters), 100)
        ax.plot(line, 1e3 * predicted(line), color=style.PREDICTED, label="predicted")
        ax.errorbar(
            parameters, middle, [middle - low, high - middle], color=style.MEASURED, marker="o",
            linestyle="none", elinewidth=1, label="measured",
        )  # fmt: skip
        ax.set(
            title=title, xlabel="weights", ylabel="milliseconds per exchange",
            xscale="log", yscale="log",
        )  # fmt: skip
        ax.legend()
    return ax.figure


def saturated(
    workers: Sequence[int],
    predicted: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    measured: Mapping[str, Mapping[int, float]],
    full: Mapping[str, float] | None = None,
    title: str = "A master that is always busy limits the speed-up",
) -> style.Figure:
    """Speed-up by the number of workers, between two predictions: regular and random times.

    Args:
        workers: W, (k,).
        predicted: master -> (speed-up with regular times, with random times), each (k,): a line
            and a dotted line, with the area between them shaded.
        measured: name -> {workers: speed-up}. A name that begins like one in `predicted` has its
            colour: "slow" and "slow, random times".
        full: master -> W* at which it saturates: a mark on its line.

    Raises:
        ValueError: `measured` has a master that `predicted` does not have.
    """
    colours = dict(zip(predicted, style.COLOURS, strict=False))
    with style.axes(width=7.6) as ax:
        for name, (regular, random) in predicted.items():
            look = {"color": colours[name]}
            ax.plot(workers, regular, label=f"{name}: regular times", **look)
            ax.plot(workers, random, linestyle=":", label=f"{name}: random times", **look)
            ax.fill_between(workers, random, regular, alpha=0.12, linewidth=0, **look)
            if full and name in full and full[name] <= max(workers):
                ax.plot([full[name]] * 2, [0, full[name]], linestyle="--", linewidth=1, **look)
        for number, (name, found) in enumerate(measured.items()):
            master = next((known for known in predicted if name.startswith(known)), None)
            if master is None:
                raise ValueError(
                    f"no prediction for {name}; there is one for {', '.join(predicted)}"
                )
            look = style.marks(number) | {"color": colours[master], "markersize": 8}
            ax.plot(
                list(found), list(found.values()), label=f"{name}: measured",
                markeredgecolor="white", **look,
            )  # fmt: skip
        ax.set(title=title, xlabel="workers", ylabel="speed-up over one worker", ylim=(0, None))
        ax.set_xticks(workers)
        style.legend_beside(ax)
    return ax.figure


def _rank(ax: Axes, place: Sequence[float], text: str) -> None:
    look = {"facecolor": "white", "edgecolor": style.BLACK, "boxstyle": "circle,pad=0.4"}
    ax.text(*place, text, ha="center", va="center", bbox=look, zorder=3)


def _arrow(ax: Axes, start: np.ndarray, end: np.ndarray, colour: str) -> None:
    """Draw an arrow, a little to the right of the line: the two directions stay apart."""
    way = (end - start) / np.linalg.norm(end - start)
    aside = 0.05 * np.array([way[1], -way[0]])
    ax.annotate(
        "", end - 0.2 * way + aside, start + 0.2 * way + aside,
        arrowprops={"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip


def _bar(ax: Axes, row: int, begin: float, end: float, colour: str, hatch: str) -> None:
    if end > begin:
        ax.barh(
            row, 1e3 * (end - begin), left=1e3 * begin, height=0.7, facecolor=colour, hatch=hatch,
            edgecolor=style.GREY if hatch else "white", linewidth=0.5,
        )  # fmt: skip
