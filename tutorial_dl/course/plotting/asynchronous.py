"""Asynchronous training beside synchronous training: at equal samples, and at equal time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from matplotlib.ticker import FuncFormatter, MaxNLocator

from tutorial_dl import figure_style as style

__all__ = ["on_equal_terms"]


def on_equal_terms(
    runs: Mapping[str, Sequence[Mapping[str, float]]],
    samples: int,
    metric: str = "val_loss",
    titles: tuple[str, str] = ("At equal samples", "At equal time, on this machine"),
) -> style.Figure:
    """A metric after every epoch: by samples seen (left), and by seconds of training (right).

    A run that is ahead on the left learns more per sample. A run that is ahead on the right learns
    more per second, on this machine. The grey line on the right is where the quickest run ended:
    for equal time, compare there.

    Args:
        runs: name -> rows of its history, one per epoch, with `metric` and "seconds".
        samples: training samples per epoch, over all workers.
        metric: a column of the rows; a loss gets a logarithmic axis.
        titles: the titles of both panels.

    Raises:
        ValueError: no runs, a run without epochs or without a column.
    """
    if not runs:
        raise ValueError("no runs: runs must have at least one name with the rows of its history")
    for name, rows in runs.items():
        for column in (metric, "seconds"):
            if not rows or column not in rows[0]:
                has = ", ".join(rows[0]) if rows else "no epochs"
                raise ValueError(f"{name}: no '{column}' in its history, which has {has}")
    with style.panels(1, 2, width=5.2, sharey=True) as (figure, ((left, right),)):
        for number, (name, rows) in enumerate(runs.items()):
            values = [row[metric] for row in rows]
            seen = [samples * (epoch + 1) for epoch in range(len(rows))]
            seconds = list(accumulate(row["seconds"] for row in rows))
            for ax, at in ((left, seen), (right, seconds)):
                look = style.marks(number) | {"linestyle": "-", "markersize": 4}
                ax.plot(at, values, label=name, **look)
        quickest = min(sum(row["seconds"] for row in rows) for rows in runs.values())
        right.axvline(quickest, color=style.GREY, linewidth=1)
        left.set(
            title=titles[0], xlabel="samples seen", ylabel=metric.replace("val_", "validation ")
        )
        right.set(title=titles[1], xlabel="seconds of training", xlim=(0, None))
        left.set_xlim(0, None)
        left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        left.xaxis.set_major_locator(MaxNLocator(5))
        if "loss" in metric:
            style.log_y(left)
        right.legend()
    return figure
