"""Figures of scaling: throughput beside its prediction, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tutorial_dl import figure_style as style

__all__ = ["step_parts", "throughput"]


def throughput(
    ranks: Sequence[int],
    predicted: Sequence[float],
    measured: Sequence[float],
    cores: int,
    title: str = "More ranks help as long as there are cores",
) -> style.Figure:
    """Samples per second of all ranks together, predicted and measured, bar beside bar.

    Args:
        ranks: numbers of ranks that trained together, (k,); two bars for each.
        predicted, measured: samples per second, (k,).
        cores: bars with more ranks than cores have a grey background: their ranks take turns.
    """
    at = np.arange(len(ranks))
    with style.axes() as ax:
        ax.bar(
            at - 0.2, predicted, 0.36, label="predicted from one rank",
            facecolor="white", edgecolor=style.PREDICTED, hatch="///", linewidth=1.2,
        )  # fmt: skip
        ax.bar(at + 0.2, measured, 0.36, color=style.MEASURED, label="measured")
        for shift, heights in ((-0.2, predicted), (0.2, measured)):
            for x, height in zip(at, heights, strict=True):
                ax.text(x + shift, height, _thousands(height), ha="center", va="bottom", size=9)
        crowded = [x for x, p in zip(at, ranks, strict=True) if p > cores]
        if crowded:
            ax.axvspan(crowded[0] - 0.5, at[-1] + 0.5, color="#EEEEEE", zorder=0)
            ax.text(
                crowded[0] - 0.46, 0.98, f"more ranks than\nthe {cores} core{'s'[: cores > 1]}",
                transform=ax.get_xaxis_transform(), va="top", size=9,
            )  # fmt: skip
        ax.set(
            title=title,
            ylabel="samples per second",
            xlim=(-0.5, at[-1] + 0.5),
            ylim=(0, 1.3 * max(*predicted, *measured)),
        )
        ax.set_xticks(at, [_ranks(p) for p in ranks])
        ax.yaxis.set_major_formatter(lambda value, _: _thousands(value))
        ax.grid(visible=False, axis="x")
        ax.legend(loc="upper left")
    return ax.figure


def step_parts(
    seconds: Mapping[int, np.ndarray],
    parts: Sequence[str],
    predicted: Mapping[int, float] | None = None,
    title: str = "Where a step's time goes",
) -> style.Figure:
    """What each rank does during a step, one bar per rank.

    Args:
        seconds: number of ranks -> seconds of each part on each rank, shape (ranks, parts).
        parts: names of the parts, in the order in which they happen.
        predicted: number of ranks -> seconds per step, drawn as a line across its bars.
    """
    bars = sum(seconds)
    colours = (style.SKY, style.BLUE, style.YELLOW, style.RED, style.PINK)
    hatches = ("", "", "...", "", "")
    labels, places, y = [], [], 0.0
    with style.axes(height=1.6 + 0.36 * bars) as ax:
        for p, of_ranks in seconds.items():
            of_ranks = 1e3 * np.asarray(of_ranks, float)  # ms, (p, parts)
            if of_ranks.shape != (p, len(parts)):
                raise ValueError(
                    f"times of {p} ranks must have shape {(p, len(parts))}, got {of_ranks.shape}"
                )
            ends = of_ranks.cumsum(axis=1)
            at = y + np.arange(p)
            for number, part in enumerate(parts):
                ax.barh(
                    at, of_ranks[:, number], 0.8, left=ends[:, number] - of_ranks[:, number],
                    color=colours[number % len(colours)], hatch=hatches[number % len(hatches)],
                    label=part if p == min(seconds) else None, edgecolor="white", linewidth=0.5,
                )  # fmt: skip
            if predicted is not None:
                ax.plot(
                    [1e3 * predicted[p]] * 2, [at[0] - 0.5, at[-1] + 0.5], color=style.PREDICTED,
                    linewidth=2, label="T(p), predicted" if p == min(seconds) else None,
                )  # fmt: skip
            labels += [f"{_ranks(p)}: rank {rank}" if not rank else f"{rank}" for rank in range(p)]
            places += list(at)
            y = at[-1] + 1.7
        ax.set_yticks(places, labels)
        ax.invert_yaxis()
        ax.set(title=title, xlabel="time (ms)")
        ax.grid(visible=False, axis="y")
        style.legend_beside(ax)
    return ax.figure


def _ranks(p: int) -> str:
    return f"{p} rank{'s'[: p > 1]}"


def _thousands(value: float) -> str:
    return f"{value / 1000:.0f}k" if value >= 10_000 else f"{value:.0f}"
