"""Figures of training runs: losses by epoch, and speed-up beside the prediction."""

from __future__ import annotations

from matplotlib.figure import Figure

from . import style

__all__ = ["histories", "speed_up"]


def histories(results: list[dict]) -> Figure:
    """Validation loss by epoch, a panel a model and a line a run; `results` as `train --json`."""
    models = list(dict.fromkeys(r["model"] for r in results))
    with style.panels(1, len(models), width=5.2) as (figure, axes):
        for ax, model in zip(axes[0], models, strict=True):
            for number, result in enumerate(r for r in results if r["model"] == model):
                epochs = [row["epoch"] for row in result["history"]]
                losses = [row["val_loss"] for row in result["history"]]
                ranks = f"{result['ranks']} rank" + "s" * (result["ranks"] > 1)
                # Wide, faint lines first: runs that agree stay visible under each other.
                ax.plot(
                    epochs, losses, color=style.COLOURS[number], linewidth=7 - 1.8 * number,
                    alpha=0.75, label=f"{result['strategy']}, {ranks}",
                )  # fmt: skip
            ax.set(
                title=f"{model}: the same loss on any number of ranks",
                xlabel="epoch",
                ylabel="validation loss",
                yscale="log",
            )
            ax.legend()
    return figure


def speed_up(rows: list[dict], cores: int) -> Figure:
    """Measured speed-up (markers) and predicted (lines) over ranks; `rows` as in `run`'s table."""
    models = list(dict.fromkeys(r["model"] for r in rows))
    with style.axes() as ax:
        for number, model in enumerate(models):
            of_model = [r for r in rows if r["model"] == model and r["strategy"] != "serial"]
            one = next(r for r in rows if r["model"] == model and r["strategy"] == "serial")
            ranks = sorted({1, *(r["ranks"] for r in of_model)})
            predicted = {1: 1.0} | {r["ranks"]: r["predicted"] for r in of_model}
            colour = style.COLOURS[number]
            ax.plot(
                ranks, [predicted[p] for p in ranks], color=colour,
                linestyle=style.LINES[number], label=f"{model}, predicted",
            )  # fmt: skip
            ax.plot(
                [r["ranks"] for r in [one, *of_model]],
                [r["speed_up"] for r in [one, *of_model]],
                color=colour, linestyle="none", marker=style.MARKERS[number],
                label=f"{model}, measured",
            )  # fmt: skip
        most = max(r["ranks"] for r in rows)
        ax.axvline(cores, color=style.GREY, linewidth=1, linestyle=":")
        ax.annotate(
            f" {cores} cores", (cores, 0.02), xycoords=("data", "axes fraction"),
            color=style.GREY,
        )  # fmt: skip
        ax.set(
            title="Speed-up ends where the cores do",
            xlabel="ranks",
            ylabel="samples a second over the serial run's",
            xticks=range(1, most + 1),
            ylim=(0, None),
        )
        ax.legend()
    return ax.figure
