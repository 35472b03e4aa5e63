"""Figure of the axes of a run: copies from top to bottom, stages from left to right.

Within a stage, the ranks of a tensor group stand side by side, and parts of sequences (context)
below each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from tutorial_dl import figure_style as style
from tutorial_dl.layout.axes_text import ranks_of, split_groups, title

__all__ = ["draw_axes"]

MOST = 6  # copies, stages, parts or ranks that are drawn; of more, the first ones and the last
INCH = 0.42
GAP = 0.7
NARROWEST = 5.2  # inches, for the notes below


def draw_axes(
    axes: Mapping[str, int], node_size: int | None = None, ax: Axes | None = None
) -> style.Figure:
    """A square per rank, in the colour of its node if nodes have `node_size` ranks.

    Args:
        axes: Name -> size, outermost first, as of `layout.axes.sizes`.
        node_size: Ranks per node; None: one colour.
        ax: Where to draw; a new figure if None.
    """
    copies, stages, parts, ranks = (
        shown(axes.get(name, 1)) for name in ("data", "pipeline", "context", "tensor")
    )
    across, down = len(ranks) + GAP, len(parts) + GAP
    left = 4.0 if "context" in axes else 2.4  # for the names of copies, and of parts
    width, height = left + across * len(stages), 1.2 + down * len(copies)
    split = {rank for group in split_groups(axes, node_size or 1 << 62) for rank in group}
    width = max(width, NARROWEST / INCH)
    with style.axes(ax, INCH * width, INCH * (height + 1.6) + 0.4) as ax:
        for row, copy in enumerate(copies):
            y = -down * row
            words = "..." if copy is None else f"copy {copy}"
            ax.text(0, y - (len(parts) - 1) / 2, words, va="center", weight="bold")
            for column, stage in enumerate(stages):
                x = left + across * column
                if row == 0 and "pipeline" in axes:
                    words = "..." if stage is None else f"stage {stage}"
                    ax.text(x + (len(ranks) - 1) / 2, 1.05, words, ha="center", weight="bold")
                for line, part in enumerate(parts):
                    if "context" in axes and column == 0:
                        words = "" if part is None else f"part {part}"
                        ax.text(x - 0.65, y - line, words, ha="right", va="center", size=7)
                    numbers = None
                    if None not in (copy, stage, part):
                        numbers = ranks_of(axes, data=copy, pipeline=stage, context=part)
                    for place, t in enumerate(ranks):
                        number = None if numbers is None or t is None else numbers[t]
                        _square(ax, x + place, y - line, number, node_size)
                    if len(ranks) > 1 and numbers is not None:
                        cut = numbers[0] in split
                        _frame(ax, x, y - line, len(ranks), style.RED if cut else style.GREY, cut)
        notes = ["frame: the ranks of a tensor group, which cut each layer"] * (len(ranks) > 1)
        notes += ["dashed: on several nodes"] * bool(split)
        notes += [f"colour: the node, of {node_size} ranks"] * (node_size is not None)
        floor = -down * len(copies) + 1.0
        ax.text(0, floor, "\n".join(notes), size=8, color=style.GREY, va="top")
        ax.set(xlim=(-0.2, width), ylim=(floor - 0.5 * len(notes) - 0.1, 1.7), aspect="equal")
        ax.set(title=title(axes))
        ax.set_axis_off()
    return ax.figure


def shown(size: int) -> list[int | None]:
    """The numbers of an axis that are drawn; None stands for those left out."""
    if size <= MOST:
        return list(range(size))
    return [*range(MOST - 2), None, size - 1]


def _square(ax: Axes, x: float, y: float, rank: int | None, node_size: int | None) -> None:
    if rank is None:
        ax.text(x, y, "...", ha="center", va="center", color=style.GREY)
        return
    colour = style.BLUE if node_size is None else style.colour(rank // node_size)
    box = FancyBboxPatch(
        (x - 0.33, y - 0.33), 0.66, 0.66, boxstyle="round,pad=0.05", facecolor=colour,
        edgecolor="white", zorder=2,
    )  # fmt: skip
    ax.add_patch(box)
    look = {"size": 8, "color": "white", "weight": "bold", "zorder": 3}
    ax.text(x, y, str(rank), ha="center", va="center", **look)


def _frame(ax: Axes, x: float, y: float, ranks: int, colour: str, dashed: bool) -> None:
    box = FancyBboxPatch(
        (x - 0.42, y - 0.42), ranks - 0.16, 0.84, boxstyle="round,pad=0.06", facecolor="white",
        edgecolor=colour, linewidth=1.2, linestyle="--" if dashed else "-", zorder=1,
    )  # fmt: skip
    ax.add_patch(box)
