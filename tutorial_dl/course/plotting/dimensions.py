"""Figures of cuts over many ranks: what each costs, and which fit into memory."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Numbers

# What it is for -> colour and hatch; the same in all figures. Computing is grey: no cut avoids it.
LOOKS = {
    "computing": (style.GREY, ""),
    "bubble": ("#D9D9D9", "xx"),
    "data": (style.BLUE, ""),
    "pipeline": (style.ORANGE, "//"),
    "context": (style.PINK, "\\\\"),
    "tensor": (style.GREEN, ".."),
    "weights": (style.BLUE, ""),
    "gradients": (style.ORANGE, "//"),
    "state": (style.GREEN, ".."),
    "activations": (style.PINK, "\\\\"),
}


def looks_of(kinds: Iterable[str]) -> list[dict]:
    return [{"color": LOOKS[kind][0], "hatch": LOOKS[kind][1]} for kind in kinds]


def parts_of_cuts(
    parts: Mapping[str, Mapping[str, float]],
    xlabel: str,
    title: str,
    measured: Numbers | None = None,
    limit: tuple[float, str] | None = None,
) -> style.Figure:
    """What each cut needs, as bars made of parts, one below the other.

    Args:
        parts: Name of the cut -> part -> amount, in the unit of `xlabel`; the same parts for all.
        measured: The whole, measured, per cut (k,): markers; None: nothing was measured.
        limit: Where a line is drawn, and its label.
    """
    names = list(parts)
    kinds = [kind for kind in parts[names[0]] if any(one[kind] for one in parts.values())]
    with style.axes(width=8.4, height=1.4 + 0.42 * len(names)) as ax:
        columns = {kind: np.array([parts[name][kind] for name in names]) for kind in kinds}
        right = style.stacked(ax, range(len(names)), columns, looks_of(kinds)).max()
        style.rows(ax, names)
        if measured is not None:
            look = {"color": style.BLACK, "markeredgecolor": "white", "markersize": 8, "zorder": 4}
            ax.plot(measured, range(len(names)), "D", label="measured", **look)
            right = max(right, *measured)
        if limit is not None:
            ax.axvline(limit[0], color=style.RED, linestyle="--", label=limit[1])
            right = max(right, limit[0])
        ax.set(xlabel=xlabel, title=title, xlim=(0, 1.05 * right))
        style.legend_beside(ax)
    return ax.figure


@style.one_panel(
    "Every cut: what a GPU holds, and how long a step takes", "GB per GPU", "seconds per step",
    width=8.0, height=4.6, legend="beside",
)  # fmt: skip
def map_of_cuts(
    ax, memory: Numbers, seconds: Numbers, tensor: Sequence[int], limit: float,
    named: Mapping[str, int],
) -> None:  # fmt: skip
    """Cuts as points: memory to the right, time upwards, both logarithmic.

    Args:
        memory, seconds: Of each cut, (k,), in GB and s.
        tensor: T of each cut, (k,): colour and marker.
        limit: GB per GPU. What lies to the right of the line does not fit.
        named: Names of some points -> their place in `memory`.
    """
    memory, seconds, tensor = np.asarray(memory), np.asarray(seconds), np.asarray(tensor)
    ax.set_xscale("log")
    for number, size in enumerate(sorted(set(tensor.tolist()))):
        here = tensor == size
        look = {"markersize": 7, "markeredgecolor": "white"} | style.marks(number)
        ax.plot(memory[here], seconds[here], label=f"tensor {size}", **look)
    ax.set_ylim(seconds.min() / 1.7, 1.2 * seconds.max())  # with room for names at the bottom
    style.log_y(ax, (1, 1.5, 2, 3, 5, 7))
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500) if memory.min() / 1.5 < t]
    ticks = [t for t in ticks if t < 1.5 * memory.max()]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.axvline(limit, color=style.RED, linestyle="--")
    ax.axvspan(limit, 1.4 * max(memory.max(), limit), color=style.RED, alpha=0.07, linewidth=0)
    ax.set_xlim(memory.min() / 1.3, 1.4 * max(memory.max(), limit))
    style.note(
        ax, f"over {limit:g} GB", (limit, 0.97), (5, 0), ("data", "axes fraction"),
        color=style.RED, va="top",
    )  # fmt: skip
    for name, place in named.items():
        look = {"arrowprops": {"arrowstyle": "-", "color": style.GREY}, "ha": "right", "va": "top"}
        look["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        at = memory[place], seconds[place]
        style.note(ax, name, at, (6, -14), **look)
