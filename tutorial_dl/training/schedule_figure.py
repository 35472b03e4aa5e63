"""Figures of learning rates over the steps of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import figure_style as style

__all__ = ["learning_rates"]

POINTS = 1000  # more than a figure has pixels


def learning_rates(
    schedules: Mapping[str, Callable[[int], float]], steps: int, ax: Axes | None = None
) -> Figure:
    """The learning rate over a run, one line per schedule.

    Args:
        schedules: legend entry -> function from the step (0, 1, ...) to the learning rate.
        steps: steps of the run, 1 or more.
        ax: where to draw; a new figure if None.

    Raises:
        ValueError: fewer than 1 step.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    at = np.unique(np.linspace(0, steps, min(POINTS, steps) + 1).round().astype(int))
    with style.axes(ax) as ax:
        for number, (name, rate) in enumerate(schedules.items()):
            ax.plot(at, [rate(int(s)) for s in at], label=name, **style.line(number))
        ax.set_title("Learning rate by step", loc="left")
        ax.set(xlabel="step", ylabel="learning rate", xlim=(0, steps))
        ax.set_ylim(bottom=0)
        ax.legend()
    return ax.figure
