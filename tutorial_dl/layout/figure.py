"""Figures of a layout (the roles of the ranks as a tree, and their nodes) and of a run's axes.

Axes: copies from top to bottom, stages from left to right. Within a stage, the ranks of a tensor
group stand side by side, and parts of sequences (context) below each other.
"""

from collections.abc import Hashable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from tutorial_dl import figure_style as style
from tutorial_dl.layout.axes import ranks_of, split_groups
from tutorial_dl.layout.axes import title as title_of
from tutorial_dl.layout.counts import in_words
from tutorial_dl.layout.roles import Role
from tutorial_dl.layout.tree import Knot, roots, shortened
from tutorial_dl.words import counted

__all__ = ["draw_axes", "draw_layout"]

# From top to bottom. Groups and folds without a master also have a row, for their names.
ROWS = {
    "coordinator": ("coordinator", "keeps the books"),
    "block": ("", ""),
    "master": ("master", "holds the weights"),
    "sub_master": ("sub-masters", "hold a copy each"),
    "worker": ("workers", "compute gradients"),
}
COLOURS = dict(coordinator=style.PINK, master=style.RED, sub_master=style.ORANGE, worker=style.BLUE)
INCH = 0.38  # side of a square, which is the unit of all lengths here
GAP, ROW, LABELS = 0.6, 2.2, 3.7  # between workers; between rows; for names on the left
WIDEST = 34.0  # width of a tree; wider trees are shortened
SQUARES = 8  # ranks per worker, or per line of a node; more take one box, or another line
NODES = 6  # longer lists of nodes are shortened
SHOWN = 6  # copies, stages, parts or ranks that are drawn; of more, the first ones and the last
SIDE, APART = 0.42, 0.7  # of axes: inches of a square; between two stages or copies
NARROWEST = 5.2  # inches, for the notes below axes


def draw_layout(
    layout, nodes: Sequence[Hashable] | None = None, title: str | None = None,
    ax: Axes | None = None,
) -> style.Figure:  # fmt: skip
    """Roles as a tree with one square per rank; below it the nodes, if they are given.

    Large layouts are shortened to the first few, how many are left out, and the last.

    Args:
        layout: the Layout to draw.
        nodes: the node of each rank, numbers or names, (ranks,).
        title: the figure's title; by default the numbers of the layout.
        ax: where to draw; a new figure if None.
    """
    roles = layout.roles(nodes)
    for most in (8, 5, 4, 3):
        knots = shortened(roots(roles), most)
        width = _side_by_side(knots)
        if width <= WIDEST:
            break
    kinds = _kinds(knots)
    heights = {kind: -ROW * row for row, kind in enumerate(k for k in ROWS if k in kinds)}
    bottom = min(heights.values()) - 1.3  # a worker's name is below it
    machine = [] if nodes is None else _machine(nodes, roles)
    width = max(width, 8.0, sum(_node_width(lines) + GAP for _, lines in machine)) + 0.2
    floor = bottom - max((1.15 * len(lines) + 1.2 for _, lines in machine), default=0.0)

    size = {"width": INCH * (width + LABELS), "height": INCH * (1.4 - floor) + 0.3}
    with style.axes(ax, **size) as ax:
        left = 0.0
        for knot in knots:
            _draw(ax, knot, left, knot.role, heights)
            left += _width(knot) + GAP
        for kind, y in heights.items():
            name, does = ROWS[kind]
            if layout.devices > 1 and kind == "worker":
                does += "\nframe: one batch"
            _row_name(ax, y, name, does, COLOURS.get(kind, style.BLACK))
        if not layout.masters and not layout.search and layout.ranks > 1:
            low, look = heights["worker"] - 1.1, {"linestyle": "--", "zorder": 0.5}
            _frame(ax, -0.3, low, left - GAP + 0.6, 1.9, style.GREY, **look)
            ax.text(-0.2, 0.85, "all reduce together", size=8, color=style.GREY)
        left = 0.0
        for name, lines in machine:
            _draw_node(ax, name, lines, left, bottom - 0.9)
            left += _node_width(lines) + GAP
        if machine:
            cut = any(not whole for _, lines in machine for line in lines for *_, whole in line)
            note = "dashed: a worker\ncut between nodes" if cut else ""
            _row_name(ax, bottom - 1.5, "nodes", note, style.BLACK)
        if title is None:
            title = f"{in_words(layout)}: {counted(layout.ranks, 'rank')}"
        ax.set(xlim=(-LABELS, width), ylim=(floor, 1.4), title=title)
        ax.set_axis_off()
    return ax.figure


# The tree --------------------------------------------------------------------------------------


def _kinds(knots: Sequence[Knot]) -> set[str]:
    return {knot.role for knot in knots}.union(*(_kinds(knot.below) for knot in knots))


def _width(knot: Knot) -> float:
    """The width of a knot with everything below it."""
    if knot.role == "worker":
        return max(len(knot.ranks), 1.3) if len(knot.ranks) <= SQUARES else 4.0
    least = 2.6 if knot.role == "more" or "group" in knot.label else 1.0
    return max(least, _side_by_side(knot.below))


def _side_by_side(knots: Sequence[Knot]) -> float:
    return sum(map(_width, knots)) + GAP * max(len(knots) - 1, 0)


def _draw(ax: Axes, knot: Knot, left: float, kind: str, heights: Mapping[str, float]) -> float:
    """Draw the knot in the row of `kind`, and those below it; return the x of its middle."""
    y, width = heights[kind], _width(knot)
    middle = left + width / 2
    if knot.below:
        left += (width - _side_by_side(knot.below)) / 2
        below = next(child.role for child in knot.below if child.role != "more")
        middles = []
        for child in knot.below:
            middles.append(_draw(ax, child, left, below, heights))
            left += _width(child) + GAP
        middle = (middles[0] + middles[-1]) / 2
        for child, x in zip(knot.below, middles, strict=True):
            look = ":" if child.role == "more" else "-"
            ax.plot([middle, x], [y, heights[below]], look, color=style.GREY, lw=1.2, zorder=0)
    if knot.role == "more":
        _say(ax, middle, y, knot.label)
    elif knot.role == "worker":
        _draw_worker(ax, knot, middle, y)
    elif knot.role == "block":
        _say(ax, middle, y, knot.label.replace(", ", "\n"))
    else:
        _square(ax, middle, y, str(knot.ranks[0]), COLOURS[knot.role])
        if "group" in knot.label:
            name = knot.label.split(":")[0].replace(", ", "\n")
            _say(ax, middle, y + 0.85, name)
    return middle


def _draw_worker(ax: Axes, knot: Knot, middle: float, y: float) -> None:
    ranks = knot.ranks
    if len(ranks) > SQUARES:
        first, last = min(ranks), max(ranks)
        whole = last - first == len(ranks) - 1
        text = f"{first} to {last}" if whole else f"{len(ranks)} ranks"
        _square(ax, middle, y, text, COLOURS["worker"], width=3.6)
    for number, rank in enumerate(ranks if len(ranks) <= SQUARES else ()):
        _square(ax, middle + number - (len(ranks) - 1) / 2, y, str(rank), COLOURS["worker"])
    if len(ranks) > 1:
        width = len(ranks) if len(ranks) <= SQUARES else 4.0
        _frame(ax, middle - width / 2, y - 0.5, width, 1.0, style.BLUE)
    ax.text(middle, y - 0.6, knot.label, ha="center", va="top", size=8)


# The machine -----------------------------------------------------------------------------------

Lines = list[list[tuple[list[int], str, bool]]]  # per node: (ranks, role, whole worker?)


def _machine(nodes: Sequence[Hashable], roles: Sequence[Role]) -> list[tuple[str, Lines]]:
    """Each node's name and its ranks in lines, with the ranks of a worker side by side."""
    pieces: dict[Hashable, dict[tuple, list[int]]] = {}
    for node, role in zip(nodes, roles, strict=True):
        own = (role.group, role.fold, role.worker, role.rank if role.worker is None else None)
        pieces.setdefault(node, {}).setdefault(own, []).append(role.rank)
    size = 1 + max((role.device for role in roles if role.device is not None), default=0)
    machine: list[tuple[str, Lines]] = []
    for node, parts in pieces.items():
        lines: Lines = [[]]
        for ranks in parts.values():
            used = sum(_piece_width(others) for others, *_ in lines[-1])
            if lines[-1] and used + _piece_width(ranks) > 1.25 * SQUARES:
                lines.append([])
            role = roles[ranks[0]].role
            lines[-1].append((ranks, role, role != "worker" or len(ranks) == size))
        machine.append((f"node {node}" if isinstance(node, int) else str(node), lines))
    if len(machine) > NODES:
        machine = [*machine[: NODES - 2], (f"... {len(machine) - NODES + 1} more", []), machine[-1]]
    return machine


def _node_width(lines: Lines) -> float:
    widths = (sum(_piece_width(ranks) for ranks, *_ in line) for line in lines)
    return max(widths, default=2.6) + 0.4


def _piece_width(ranks: Sequence[int]) -> float:
    return (len(ranks) if len(ranks) <= SQUARES else 3.6) + 0.25


def _draw_node(ax: Axes, name: str, lines: Lines, left: float, top: float) -> None:
    if not lines:
        ax.text(left, top - 0.7, name, va="center", size=8)
        return
    ax.text(left, top + 0.15, name, size=8, weight="bold")
    width, height = _node_width(lines), 1.15 * len(lines) + 0.1
    _frame(ax, left, top - height, width, height, style.BLACK, facecolor="#F2F2F2")
    for number, line in enumerate(lines):
        x, y = left + 0.3, top - 0.6 - 1.15 * number
        for ranks, role, whole in line:
            width = _piece_width(ranks) - 0.25
            if len(ranks) > SQUARES:
                _square(
                    ax, x + width / 2, y, f"{len(ranks)} ranks", COLOURS[role], width=width - 0.2
                )
            for place, rank in enumerate(ranks if len(ranks) <= SQUARES else ()):
                _square(ax, x + 0.5 + place, y, str(rank), COLOURS[role])
            if not whole:
                _frame(ax, x, y - 0.5, width, 1.0, style.RED, linestyle="--")
            elif len(ranks) > 1:
                _frame(ax, x, y - 0.5, width, 1.0, style.BLUE)
            x += width + 0.25


# The axes of a run without masters --------------------------------------------------------------


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
    across, down = len(ranks) + APART, len(parts) + APART
    left = 4.0 if "context" in axes else 2.4  # for the names of copies, and of parts
    width, height = left + across * len(stages), 1.2 + down * len(copies)
    split = {rank for group in split_groups(axes, node_size or 1 << 62) for rank in group}
    width = max(width, NARROWEST / SIDE)
    with style.axes(ax, SIDE * width, SIDE * (height + 1.6) + 0.4) as ax:
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
                        if number is None:
                            ax.text(x + place, y - line, "...", ha="center", color=style.GREY)
                            continue
                        node = 0 if node_size is None else number // node_size
                        _square(ax, x + place, y - line, str(number), style.colour(node))
                    if len(ranks) > 1 and numbers is not None:
                        look = (style.RED, "--") if numbers[0] in split else (style.GREY, "-")
                        low, wide = y - line - 0.46, len(ranks) - 0.08
                        _frame(ax, x - 0.46, low, wide, 0.92, look[0], linestyle=look[1])
        notes = ["frame: the ranks of a tensor group, which cut each layer"] * (len(ranks) > 1)
        notes += ["dashed: on several nodes"] * bool(split)
        notes += [f"colour: the node, of {node_size} ranks"] * (node_size is not None)
        floor = -down * len(copies) + 1.0
        ax.text(0, floor, "\n".join(notes), size=8, color=style.GREY, va="top")
        ax.set(xlim=(-0.2, width), ylim=(floor - 0.5 * len(notes) - 0.1, 1.7), aspect="equal")
        ax.set(title=title_of(axes))
        ax.set_axis_off()
    return ax.figure


def shown(size: int) -> list[int | None]:
    """The numbers of an axis that are drawn; None stands for those left out."""
    if size <= SHOWN:
        return list(range(size))
    return [*range(SHOWN - 2), None, size - 1]


# Shapes ----------------------------------------------------------------------------------------


def _square(ax: Axes, x: float, y: float, text: str, colour: str, width: float = 0.76) -> None:
    box = FancyBboxPatch(
        (x - width / 2 + 0.05, y - 0.33), width - 0.1, 0.66, boxstyle="round,pad=0.05",
        facecolor=colour, edgecolor="white", zorder=2,
    )  # fmt: skip
    ax.add_patch(box)
    look = {"size": 8 if len(text) < 4 or width > 1 else 6, "color": "white", "weight": "bold"}
    style.middle(ax, x, y, text, zorder=3, **look)


def _frame(ax: Axes, x: float, y: float, width: float, height: float, colour: str, **look) -> None:
    look = {"facecolor": "white", "edgecolor": colour, "linewidth": 1.2, "zorder": 1} | look
    size = (width - 0.16, height - 0.16)
    ax.add_patch(FancyBboxPatch((x + 0.08, y + 0.08), *size, boxstyle="round,pad=0.08", **look))


def _row_name(ax: Axes, y: float, name: str, does: str, colour: str) -> None:
    ax.text(-LABELS, y + 0.1, name, va="bottom", color=colour, weight="bold")
    ax.text(-LABELS, y, does, va="top", color=style.GREY, size=7)


def _say(ax: Axes, x: float, y: float, text: str) -> None:
    patch = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    style.middle(ax, x, y, text, size=8, bbox=patch)
