"""Figures of optimizers that treat matrices as matrices: notebook 30."""

from collections.abc import Mapping, Sequence

import numpy as np

from tutorial_dl import figure_style as style


def mapped_circles(steps: Mapping[str, np.ndarray]) -> style.Figure:
    """What steps, name -> (2, 2), make of a circle of vectors; with its two axes."""
    around = style.circle(200).T  # (2, points)
    with style.panels(1, len(steps), width=2.6, height=2.9, sharex=True, sharey=True) as made:
        figure, grid = made
        for ax, (name, step) in zip(grid.flat, steps.items(), strict=True):
            ax.plot(*around, color=style.GREY, linestyle=":", linewidth=1)
            ax.plot(*(step @ around), color=style.BLUE)
            u, s, _ = np.linalg.svd(step)
            for axis in (u * s).T:
                style.arrow(ax, (0, 0), tuple(axis), color=style.RED)
            ax.set_title(name)
            ax.set_aspect("equal")
    return figure


@style.one_panel("Each round raises small singular values", "singular value before", "after")
def rounds_of_newton_schulz(ax, polynomial: Sequence[float], rounds: int):
    """What `rounds` rounds of a s + b s^3 + c s^5 make of singular values from 0.001 to 1."""
    a, b, c = polynomial
    s = now = np.geomspace(1e-3, 1, 1000)
    ax.axhspan(0.7, 1.2, color=style.SKY, alpha=0.3, label="0.7 to 1.2")
    for number in range(rounds):
        now = a * now + b * now**3 + c * now**5
        ends = {"label": f"{number + 1} rounds" if number else "1 round"}
        ax.plot(s, now, **style.line(number) | ends)
    ax.set_xscale("log")
