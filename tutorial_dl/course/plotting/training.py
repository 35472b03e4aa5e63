"""Figures of synchronous training: losses, speed-up and throughput, parts of a step, averages."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Numbers
from tutorial_dl.words import counted

SAME = 0.05  # losses that differ by less, relatively, count as the same curve


def histories(results: list[dict], columns: int | None = None) -> style.Figure:
    """Validation loss by epoch, one panel per model and one line per run.

    Runs that agree lie on top of each other, so the first one is a wide band, and the others are
    lines within it whose markers alternate: all can be seen.

    Args:
        results: runs as `train --json` writes them: "model", "strategy", "ranks", and "history",
            whose rows have "epoch" and "val_loss".
        columns: panels beside each other; None: all of them.
    """
    models = list(dict.fromkeys(r["model"] for r in results))
    size = {"width": 5.2, "height": style.HEIGHT}
    with style.panel_each(models, columns or len(models), **size) as (figure, panels):
        figure.get_layout_engine().set(h_pad=0.12)  # inches
        for model, ax in panels.items():
            runs = [r for r in results if r["model"] == model]
            for number, run in enumerate(runs):
                epochs = [row["epoch"] for row in run["history"]]
                losses = [row["val_loss"] for row in run["history"]]
                look = {"color": style.colour(number)}
                if number == 0 and len(runs) > 1:
                    look |= style.BAND
                elif number:
                    # About ten markers per line, and no two lines have one at the same epoch.
                    every = max(len(runs) - 1, len(epochs) // 10)
                    shift = (number - 1) * every // (len(runs) - 1)
                    marker = style.MARKERS[number % len(style.MARKERS)]
                    look |= {"linewidth": 1.2, "marker": marker, "markevery": (shift, every)}
                label = f"{run['strategy']}, {counted(run['ranks'], 'rank')}"
                ax.plot(epochs, losses, label=label, **look)
            losses = [[row["val_loss"] for row in run["history"]] for run in runs]
            same = len(runs) > 1 and len({len(of_run) for of_run in losses}) == 1
            same = same and np.allclose(losses, losses[0], rtol=SAME)
            words = "the same loss on any number of ranks" if same else "loss by epoch"
            ax.set(title=f"{model}: {words}", xlabel="epoch", ylabel="validation loss")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            style.log_y(ax)
            ax.legend()
    return figure


def speed_up(rows: list[dict], cores: int) -> style.Figure:
    """Speed-up by the number of ranks, measured (markers) and predicted (lines).

    Args:
        rows: rows of the table of `run`.
        cores: with more ranks than these, ranks take turns; that part has a grey background.
    """
    models = list(dict.fromkeys(r["model"] for r in rows))
    most = max(r["ranks"] for r in rows)
    with style.axes(width=5.4) as ax:
        ax.plot([1, most], [1, most], color=style.GREY, linewidth=1, label="p times as fast")
        for number, model in enumerate(models):
            of_model = [r for r in rows if r["model"] == model and r["strategy"] != "serial"]
            one = next(r for r in rows if r["model"] == model and r["strategy"] == "serial")
            predicted = {1: 1.0} | {r["ranks"]: r["predicted"] for r in of_model}
            ranks = sorted(predicted)
            line = [predicted[p] for p in ranks]
            ax.plot(ranks, line, label=f"{model}, predicted", **style.line(number))
            # Side by side, because models with equal speed-up would hide each other.
            aside = 0.06 * (number - (len(models) - 1) / 2)
            measured = [(r["ranks"] + aside, r["speed_up"]) for r in (one, *of_model)]
            look = {"markersize": 7, "markeredgecolor": "white", "label": f"{model}, measured"}
            ax.plot(*zip(*measured, strict=True), **look, **style.marks(number))
        if most > cores:
            words = f"beyond {counted(cores, 'core')}: ranks take turns"
            ax.axvspan(cores, most + 0.2, color="#EEEEEE", zorder=0)
            where = {"transform": ax.get_xaxis_transform(), "va": "bottom"}
            ax.text(cores + 0.08, 0.02, words, color=style.GREY, **where)
        highest = max(max(r["speed_up"], r["predicted"]) for r in rows)
        ax.set(
            title=_speed_up_title(rows, cores),
            xlabel="ranks p", ylabel="speed-up over the serial run",
            xticks=sorted({r["ranks"] for r in rows}), xlim=(0.8, most + 0.2),
            ylim=(0, 1.25 * highest),
        )  # fmt: skip
        style.legend_below(ax)
    return ax.figure


def _speed_up_title(rows: list[dict], cores: int) -> str:
    """What was measured, in a few words."""
    best = max(rows, key=lambda row: row["speed_up"])
    if best["ranks"] == 1 or best["speed_up"] < 1 + SAME:
        return "No speed-up here: one rank was as fast as several"
    beyond = [row["speed_up"] for row in rows if row["ranks"] > cores]
    ends = bool(beyond) and max(beyond) < (1 - SAME) * best["speed_up"]
    if ends and best["ranks"] <= cores and best["speed_up"] >= 1.25:
        return "Speed-up ends where the cores do"
    return f"Up to {best['speed_up']:.1f} times as fast, on {best['ranks']} ranks"


@style.one_panel(
    "Throughput by the number of ranks", ylabel="samples per second", legend="upper left"
)
def throughput(ax, ranks: Sequence[int], predicted: Numbers, measured: Numbers, cores: int):
    """Samples per second of all ranks together, predicted and measured, bar beside bar.

    Args:
        ranks: numbers of ranks that trained together, (k,); two bars for each.
        predicted, measured: samples per second, (k,).
        cores: bars with more ranks than cores have a grey background: their ranks take turns.
    """
    at = np.arange(len(ranks))
    look = {"facecolor": "white", "edgecolor": style.PREDICTED, "hatch": "///", "linewidth": 1.2}
    ax.bar(at - 0.2, predicted, 0.36, label="predicted from one rank", **look)
    ax.bar(at + 0.2, measured, 0.36, color=style.MEASURED, label="measured")
    for shift, heights in ((-0.2, predicted), (0.2, measured)):
        for x, height in zip(at, heights, strict=True):
            ax.text(x + shift, height, _thousands(height), ha="center", va="bottom", size=9)
    crowded = [x for x, p in zip(at, ranks, strict=True) if p > cores]
    if crowded:
        words = f"more ranks than\nthe {counted(cores, 'core')}"
        ax.axvspan(crowded[0] - 0.5, at[-1] + 0.5, color="#EEEEEE", zorder=0)
        where = {"transform": ax.get_xaxis_transform(), "va": "top"}
        ax.text(crowded[0] - 0.46, 0.98, words, size=9, **where)
    ax.set(xlim=(-0.5, at[-1] + 0.5), ylim=(0, 1.3 * max(*predicted, *measured)))
    ax.set_xticks(at, [counted(p, "rank") for p in ranks])
    ax.yaxis.set_major_formatter(_thousands)
    ax.grid(visible=False, axis="x")


@style.one_panel(
    "Weighted by samples, the ranks follow one process to the last digit",
    "step", "largest difference of a weight", yscale="log",
)  # fmt: skip
def distances(ax, runs: Mapping[str, np.ndarray]):
    """Largest |difference| of a weight from that of one process, after each step, (steps,)."""
    ε = np.finfo(float).eps
    for number, (label, away) in enumerate(runs.items()):
        away = np.maximum(away, ε / 8)  # zero cannot be drawn on a logarithmic axis
        steps, every = range(1, len(away) + 1), max(1, len(away) // 30)
        ax.plot(steps, away, label=label, markevery=every, **style.marks(number))
    ax.axhline(ε, color=style.GREY, linewidth=1, label="ε: the rounding of a number near 1")
    ax.set_yscale("log")
    ax.set_ylim(bottom=ε / 50)


@style.one_panel(
    "What overlap gains or costs on this machine", "time (ms)", "gradient", height=2.6, legend=None
)
def overlapped(ax, seconds: dict[str, float], hidden: float):
    """Seconds of a gradient alone, and with an exchange after it or meanwhile (overlap.seconds).

    `hidden` are those of the last one if idle cores did the exchange: a dashed line.
    """
    names = list(seconds)
    ax.barh(names, [1e3 * t for t in seconds.values()], color=style.MEASURED, height=0.6)
    for row, t in enumerate(seconds.values()):
        ax.text(1e3 * t, row, f" {1e3 * t:.2f}", va="center")
    last, at = len(names) - 1, 1e3 * hidden
    ax.vlines(at, last - 0.45, last + 0.45, color=style.PREDICTED, linestyle="--")
    ax.text(at, last + 0.5, "predicted with an idle core per helper", va="top", ha="center")
    ax.set_ylim(last + 0.95, -0.5)  # the first bar on top
    ax.set_xlim(0, 1.15e3 * max(*seconds.values(), hidden))
    ax.grid(axis="y", visible=False)


def _thousands(value: float, position: int | None = None) -> str:
    return f"{value / 1000:.0f}k" if value >= 10_000 else f"{value:.0f}"
