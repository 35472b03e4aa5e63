"""Showers in a calorimeter: pictures, profiles, and what they show against energy."""

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import LogNorm

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Lines


def shower_pictures(showers: Mapping[str, np.ndarray], least: float = 0.01) -> style.Figure:
    """Showers from the side: energy by layer and x, summed over y, on a common scale.

    Args:
        showers: title -> voxels (layers, x, y) in GeV.
        least: GeV; the lower end of the scale. What is below stays white.
    """
    views = {words: voxels.sum(axis=2).T for words, voxels in showers.items()}  # (x, layers)
    norm = LogNorm(least, max(float(view.max()) for view in views.values()))
    with style.panels(1, len(views), width=2.6, height=2.7, sharey=True) as (figure, (row,)):
        for ax, (words, view) in zip(row, views.items(), strict=True):
            depth, side = view.shape[1], view.shape[0]
            image = ax.imshow(
                np.where(view >= least, view, np.nan), norm=norm, origin="lower", cmap="viridis",
                extent=(0.5, depth + 0.5, 0.5, side + 0.5), aspect="auto",
            )  # fmt: skip
            ax.set(title=words, xlabel="layer")
            ax.grid(False)
        row[0].set_ylabel("x, in voxels")
        figure.colorbar(image, ax=row, label="GeV")
    return figure


@style.one_panel("Energy in each layer", "layer", "mean energy per shower, GeV", legend="beside")
def layer_profiles(ax, profiles: Lines):
    """Mean energy in each layer: legend entry -> GeV, (layers,). The first is grey bars."""
    for number, (label, values) in enumerate(profiles.items()):
        layers = np.arange(1, len(values) + 1)
        if number == 0:
            ax.bar(layers, values, width=1, color="#D5D5D5", label=label)
        else:
            ax.plot(layers, values, label=label, **style.marks(number - 1) | {"linestyle": "-"})
    ax.set_ylim(0)


@style.one_panel(
    "Separation power, between floor and ceiling", "separation power: 0 alike, 1 disjoint",
    legend="beside", xscale="log",
)  # fmt: skip
def separations_by_feature(ax, values: Mapping[str, Mapping[str, float]]):
    """A row per feature: legend entry -> {feature: separation power of its histogram}."""
    names = list(next(iter(values.values())))
    rows = np.arange(len(names))[::-1]  # the first one on top
    for number, (label, of) in enumerate(values.items()):
        ax.plot([of[name] for name in names], rows, label=label, **style.marks(number))
    ax.set_yticks(rows, names)


def shower_histograms(
    columns: Mapping[str, Mapping[str, np.ndarray]], bins: int = 30
) -> style.Figure:
    """Histograms of what a physicist looks at, one panel each.

    Args:
        columns: title of the panel -> {legend entry: numbers (n,)}. The first is drawn filled.
        bins: between the 0.5% and the 99.5% quantile of the first.
    """
    with style.panels(1, len(columns), width=2.9, height=2.7) as (figure, (row,)):
        for ax, (words, lines) in zip(row, columns.items(), strict=True):
            first = next(iter(lines.values()))
            low, high = np.quantile(first, [0.005, 0.995])
            wide = (high - low) / 4
            edges = np.linspace(low - wide, high + wide, bins + 1)
            for number, (label, values) in enumerate(lines.items()):
                inside = np.clip(values, edges[0], edges[-1])
                look = {"weights": np.full(len(values), 1 / len(values)), "label": label}
                if number == 0:
                    ax.hist(inside, edges, color="#D5D5D5", **look)
                else:
                    color = style.colour(number - 1)
                    ax.hist(inside, edges, histtype="step", color=color, linewidth=1.5, **look)
            ax.set_title(words)
            ax.set_yticks([])
        style.legend_below(row[0], 4)
    return figure
