"""Figures of hierarchies of masters: updates per second, and updates not seen, by layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan

from tutorial_dl import figure_style as style

__all__ = ["served", "unseen"]


def served(
    workers: Sequence[int],
    predicted: Mapping[str, Sequence[float]],
    measured: Mapping[str, Mapping[int, float]],
    unit: str = "updates per second",
    title: str = "One master saturates, a tree of masters scales further",
) -> style.Figure:
    """What all workers together get done per second, by their number; one line per layout.

    Args:
        workers: ranks that compute, (k,).
        predicted: layout -> rate in `unit`, (k,); NaN where it can't have so many workers.
        measured: layout -> {workers: rate in `unit`}, for those that were run.
        unit: the unit of both, for the axis.

    Raises:
        ValueError: `measured` has a layout that `predicted` does not have.
    """
    labels = {"xlabel": "ranks that compute", "ylabel": unit, "title": title}
    return _lines_and_markers(workers, predicted, measured, labels)


def unseen(
    upward: Sequence[int],
    predicted: Mapping[str, Sequence[float]],
    measured: Mapping[str, Mapping[int, float]],
    title: str = "The less often groups exchange, the less they know of each other",
) -> style.Figure:
    """Mean number of updates that a gradient has not seen, by the updates between two relays.

    Args:
        upward: updates of a sub-master from one relay to the next, (k,).
        predicted: layout -> updates not seen, (k,).
        measured: layout -> {upward: updates not seen}, for those that were run.

    Raises:
        ValueError: as for `served`.
    """
    xlabel = "updates of a group from one relay to the next"
    labels = {"xlabel": xlabel, "ylabel": "updates not seen", "title": title}
    return _lines_and_markers(upward, predicted, measured, labels)


def _lines_and_markers(
    at: Sequence[float],
    predicted: Mapping[str, Sequence[float]],
    measured: Mapping[str, Mapping[int, float]],
    labels: Mapping[str, str],
) -> style.Figure:
    """Draw a predicted line for each name, without its NaNs, and markers for what was measured."""
    unknown = [name for name in measured if name not in predicted]
    if unknown:
        raise ValueError(
            f"no prediction for {', '.join(unknown)}; there is one for {', '.join(predicted)}"
        )
    with style.axes(width=7.6) as ax:
        for number, (name, line) in enumerate(predicted.items()):
            known = [(x, y) for x, y in zip(at, line, strict=True) if not isnan(y)]
            ax.plot(*zip(*known, strict=True), label=f"{name}, predicted", **style.line(number))
            if found := measured.get(name):
                look = style.marks(number) | {"markersize": 8, "markeredgecolor": "white"}
                ax.plot(list(found), list(found.values()), label=f"{name}, measured", **look)
        ax.set(ylim=(0, None), **labels)
        ax.set_xticks(at)
        style.legend_beside(ax)
    return ax.figure
