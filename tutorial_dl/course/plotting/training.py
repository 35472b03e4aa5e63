"""Figures of training runs: losses by epoch, and speed-up beside its prediction."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from ... import figure_style as style

__all__ = ["histories", "speed_up"]

SAME = 0.05  # losses that differ by less, relatively, count as the same curve


def histories(results: list[dict]) -> Figure:
    """Validation loss by epoch, one panel per model and one line per run.

    Runs that agree lie on top of each other, so the first one is a wide band, and the others are
    lines within it whose markers alternate: all can be seen.

    Args:
        results: runs as `train --json` writes them: "model", "strategy", "ranks", and "history",
            whose rows have "epoch" and "val_loss".
    """
    models = list(dict.fromkeys(r["model"] for r in results))
    with style.panels(1, len(models), width=5.2) as (figure, axes):
        for ax, model in zip(axes[0], models, strict=True):
            runs = [r for r in results if r["model"] == model]
            for number, run in enumerate(runs):
                epochs = [row["epoch"] for row in run["history"]]
                losses = [row["val_loss"] for row in run["history"]]
                look = {"color": style.colour(number)}
                if number == 0 and len(runs) > 1:
                    look |= {"linewidth": 9, "alpha": 0.3, "solid_capstyle": "round"}
                elif number:
                    # About ten markers per line, and no two lines have one at the same epoch.
                    every = max(len(runs) - 1, len(epochs) // 10)
                    shift = (number - 1) * every // (len(runs) - 1)
                    marker = style.MARKERS[number % len(style.MARKERS)]
                    look |= {"linewidth": 1.2, "marker": marker, "markevery": (shift, every)}
                ax.plot(epochs, losses, label=f"{run['strategy']}, {_ranks(run['ranks'])}", **look)
            ax.set(title=f"{model}: {_message(runs)}", xlabel="epoch", ylabel="validation loss")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            _logarithmic(ax)
            ax.legend()
    return figure


def speed_up(rows: list[dict], cores: int) -> Figure:
    """Speed-up by the number of ranks, measured (markers) and predicted (lines).

    Args:
        rows: rows of the table of `run`.
        cores: with more ranks than these, ranks take turns; that part has a grey background.
    """
    models = list(dict.fromkeys(r["model"] for r in rows))
    most = max(r["ranks"] for r in rows)
    with style.axes() as ax:
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
            ax.plot(
                [r["ranks"] + aside for r in (one, *of_model)],
                [r["speed_up"] for r in (one, *of_model)],
                markersize=7, markeredgecolor="white", label=f"{model}, measured",
                **style.marks(number),
            )  # fmt: skip
        if most > cores:
            ax.axvspan(cores, most + 0.2, color="#EEEEEE", zorder=0)
            ax.text(
                cores + 0.08, 0.02, f"beyond {cores} core{'s'[: cores > 1]}: ranks take turns",
                transform=ax.get_xaxis_transform(), va="bottom", color=style.GREY,
            )  # fmt: skip
        highest = max(max(r["speed_up"], r["predicted"]) for r in rows)
        ax.set(
            title="Speed-up ends where the cores do" if most > cores else "Speed-up by ranks",
            xlabel="ranks p",
            ylabel="speed-up over the serial run",
            xticks=sorted({r["ranks"] for r in rows}),
            xlim=(0.8, most + 0.2),
            ylim=(0, 1.25 * highest),
        )
        style.legend_beside(ax)
    return ax.figure


def _message(runs: list[dict]) -> str:
    """The title of a panel: only runs that agree at every epoch are called the same."""
    losses = [[row["val_loss"] for row in run["history"]] for run in runs]
    lengths = {len(of_run) for of_run in losses}
    together = len(runs) > 1 and len(lengths) == 1 and np.allclose(losses, losses[0], rtol=SAME)
    return "the same loss on any number of ranks" if together else "loss by epoch"


def _logarithmic(ax: Axes) -> None:
    """A logarithmic y axis with plain numbers: 0.2, not 2 x 10^-1."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    few = {1, 2, 5} if high / low < 300 else {1}

    def label(value: float, _) -> str:
        leading = round(value / 10 ** np.floor(np.log10(value) + 1e-9))
        return f"{value:g}" if leading in few else ""

    ax.yaxis.set_major_formatter(FuncFormatter(label))
    ax.yaxis.set_minor_formatter(FuncFormatter(label) if len(few) > 1 else NullFormatter())


def _ranks(p: int) -> str:
    return f"{p} rank{'s'[: p > 1]}"
