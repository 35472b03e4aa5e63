"""Figures of one master and many workers, of trees of masters, and of asynchronous training."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import isnan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Lines, Numbers

COMPUTES = "#D8D8D8"
EDGED = {"markersize": 8, "markeredgecolor": "white"}  # stand out from lines and from each other


def many_to_few(workers: int = 6) -> style.Figure:
    """A master with its workers beside a ring of as many ranks, and the busiest rank's traffic.

    Args:
        workers: W, 2 or more. The right panel has up to W workers: 2 W vectors go through the
            master; a rank of an allreduce sends 2 (W - 1) / W and receives as many.
    """
    if workers < 2:
        raise ValueError(f"workers must be at least 2, got {workers}")
    with style.panels(1, 3, width=3.6, height=3.4) as (figure, ((star, ring, lines),)):
        places = style.circle(workers)
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
        said = {"gradient to the master": style.BLUE, "weights back": style.RED}
        for words, colour in (said | {"pieces of the sum": style.GREEN}).items():
            star.plot([], [], color=colour, marker=">", label=words)
        style.legend_below(star, 3, "outside lower left")

        many = np.arange(2, workers + 1)
        lines.plot(many, 2 * many, color=style.BLUE, marker="o", label="master: 2W")
        look = {"color": style.GREEN, "marker": "^", "linestyle": "--", "label": "ring: 4(W-1)/W"}
        lines.plot(many, 4 * (many - 1) / many, **look)
        lines.set(title="Vectors in and out of the busiest rank", ylim=(0, None), xticks=many)
        lines.set(xlabel="ranks that compute, W", ylabel="vectors per round")
        lines.legend()
    return figure


def service(runs: Mapping[str, tuple[Sequence[Numbers], int]], until: float) -> style.Figure:
    """What the master and each worker do until `until`, in seconds, one panel per run.

    `runs` is title -> (rows of `foundations.first_come_first_served`, number of workers).
    """
    lines = [workers + 2 for _, workers in runs.values()]
    height = 0.26 * np.mean(lines) + 0.4  # inches per panel, on average
    size = {"width": 8.4, "height": height, "height_ratios": lines}
    with style.panels(len(runs), 1, sharex=True, **size) as (figure, grid):
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
        grid[-1, 0].set_xlabel("time (ms)")
        looks = {
            "computes": {"facecolor": COMPUTES},
            "waits": {"facecolor": "white", "edgecolor": style.GREY, "hatch": "///"},
            "served (master: by colour of worker)": {"facecolor": style.BLUE},
        }
        style.patch_legend(figure, looks, loc="outside lower right")
    return figure


@style.one_panel(
    "A master that is always busy limits the speed-up", "workers", "speed-up over one worker",
    ylim=(0, None), width=7.6, legend="beside",
)  # fmt: skip
def saturated(
    ax,
    workers: Sequence[int],
    predicted: Mapping[str, tuple[Numbers, Numbers]],
    measured: Mapping[str, Mapping[int, float]],
    full: Mapping[str, float] | None = None,
):
    """Speed-up by the number of workers, between two predictions: regular and random times.

    Args:
        workers: W, (k,).
        predicted: master -> (speed-up with regular times, with random times), each (k,): a line
            and a dotted line, with the area between them shaded.
        measured: name -> {workers: speed-up}. A name that begins like one in `predicted` has its
            colour: "slow" and "slow, random times".
        full: master -> W* at which it saturates: a mark on its line.
    """
    colours = dict(zip(predicted, style.COLOURS, strict=False))
    for name, (regular, random) in predicted.items():
        look = {"color": colours[name]}
        ax.plot(workers, regular, label=f"{name}: regular times", **look)
        ax.plot(workers, random, linestyle=":", label=f"{name}: random times", **look)
        ax.fill_between(workers, random, regular, alpha=0.12, linewidth=0, **look)
        if full and name in full and full[name] <= max(workers):
            ax.plot([full[name]] * 2, [0, full[name]], linestyle="--", linewidth=1, **look)
            style.note(ax, "W*", (full[name], 0), (3, 4), **look)
    for number, (name, found) in enumerate(measured.items()):
        master = next((known for known in predicted if name.startswith(known)), None)
        _check_predicted([name] * (master is None), predicted)
        look = style.marks(number) | {"color": colours[master], "label": f"{name}: measured"}
        ax.plot(list(found), list(found.values()), **EDGED | look)
    ax.set_xticks(workers)


# Hierarchies of masters ------------------------------------------------------------------------


def served(
    workers: Sequence[int],
    predicted: Lines,
    measured: Mapping[str, Mapping[int, float]],
    unit: str = "updates per second",
) -> style.Figure:
    """What all workers together get done per second, by the ranks that compute, (k,).

    The layouts are as in `unseen`, with a rate in `unit`; NaN where one can't have so many workers.
    """
    title = "What all workers get done, by the ranks that compute"
    figure = unseen(workers, predicted, measured, title=title)
    figure.axes[0].set(xlabel="ranks that compute", ylabel=unit)
    return figure


@style.one_panel(
    "Updates that a gradient has not seen",
    "updates of a group from one relay to the next", "updates not seen",
    ylim=(0, None), width=7.6, legend="beside",
)  # fmt: skip
def unseen(
    ax, upward: Sequence[int], predicted: Lines, measured: Mapping[str, Mapping[int, float]]
):
    """Mean number of updates that a gradient has not seen, by those between two relays, (k,).

    `predicted` is layout -> updates not seen, (k,); `measured`, layout -> {upward: not seen}, has
    those that were run.
    """
    _check_predicted([name for name in measured if name not in predicted], predicted)
    for number, (name, line) in enumerate(predicted.items()):
        known = [(x, y) for x, y in zip(upward, line, strict=True) if not isnan(y)]
        ax.plot(*zip(*known, strict=True), label=f"{name}, predicted", **style.line(number))
        if found := measured.get(name):
            look = EDGED | style.marks(number)
            ax.plot(list(found), list(found.values()), label=f"{name}, measured", **look)
    ax.set_xticks(upward)


def _check_predicted(unknown: Sequence[str], predicted: Mapping) -> None:
    if unknown:
        raise ValueError(
            f"no prediction for {', '.join(unknown)}; there is one for {', '.join(predicted)}"
        )


# Asynchronous training beside synchronous training ---------------------------------------------


def on_equal_terms(
    runs: Mapping[str, Sequence[Mapping[str, float]]],
    samples: int,
    titles: tuple[str, str] = ("At equal samples", "At equal time, on this machine"),
    columns: int = 2,
) -> style.Figure:
    """Validation loss after every epoch: by samples seen (left), by seconds of training (right).

    A run that is ahead on the left learns more per sample. A run that is ahead on the right learns
    more per second, on this machine. The grey line on the right is where the quickest run ended:
    for equal time, compare there.

    Args:
        runs: name -> rows of its history, one per epoch, with "val_loss" and "seconds".
        samples: training samples per epoch, over all workers.
        titles: the titles of both panels.
        columns: 2, or 1 for one panel above the other.
    """
    if not runs:
        raise ValueError("no runs: runs must have at least one name with the rows of its history")
    for name, rows in runs.items():
        for column in ("val_loss", "seconds"):
            if not rows or column not in rows[0]:
                has = ", ".join(rows[0]) if rows else "no epochs"
                raise ValueError(f"{name}: no '{column}' in its history, which has {has}")
    with style.panels(2 // columns, columns, width=5.2, sharey=True) as (figure, grid):
        left, right = grid.flat
        figure.get_layout_engine().set(h_pad=0.12)  # inches
        for number, (name, rows) in enumerate(runs.items()):
            values = [row["val_loss"] for row in rows]
            look = style.marks(number) | {"linestyle": "-", "markersize": 4, "label": name}
            look["markevery"] = max(1, len(rows) // 15)
            left.plot([samples * (epoch + 1) for epoch in range(len(rows))], values, **look)
            right.plot(list(accumulate(row["seconds"] for row in rows)), values, **look)
        quickest = min(sum(row["seconds"] for row in rows) for rows in runs.values())
        right.axvline(quickest, color=style.GREY, linewidth=1, label="the quickest run ends")
        words = "samples seen", "seconds of training"
        for ax, title, xlabel in zip((left, right), titles, words, strict=True):
            ax.set(title=title, xlabel=xlabel, xlim=(0, None))
            ax.xaxis.set_major_locator(MaxNLocator(5))
            if ax is left or columns == 1:
                ax.set_ylabel("validation loss")
        left.xaxis.set_major_formatter("{x:,.0f}")
        style.log_y(left)
        (style.legend_below if columns == 1 else style.legend_beside)(right)
    return figure


# Shapes ----------------------------------------------------------------------------------------


def _rank(ax: Axes, place: Sequence[float], text: str) -> None:
    look = {"facecolor": "white", "edgecolor": style.BLACK, "boxstyle": "circle,pad=0.4"}
    style.middle(ax, *place, text, bbox=look, zorder=3)


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
