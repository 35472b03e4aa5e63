"""`tree`: a layout as lines of text."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tutorial_dl.layout.counts import words
from tutorial_dl.layout.tree import Knot, roots, shortened

SHOWN = 8  # most children shown below one parent


def tree(layout, nodes: Sequence[Hashable] | None = None) -> str:
    """Draw the layout as a tree, one line per rank (one line for all ranks of a worker).

    >>> from tutorial_dl.layout import Layout
    >>> print(tree(Layout(masters=1, workers=2, devices=2), nodes=["a", "a", "a", "b", "b"]))
    masters 1 x workers 2 x devices 2: 5 ranks
    master         rank 0      node a
    ├─ worker 0    ranks 1 2   node a
    └─ worker 1    ranks 3 4   node b
    """
    lines: list[tuple[str, list[int]]] = []
    for knot in shortened(roots(layout.roles(nodes)), SHOWN):
        _draw(knot, "", "", lines)
    width = max(len(label) for label, _ in lines) + 4
    numbers = [f"rank{'s' * (len(r) > 1)} {_listed(r)}" if r else "" for _, r in lines]
    column = max(map(len, numbers)) + 3
    text = [f"{words(layout)}: {layout.ranks} rank{'s' * (layout.ranks != 1)}"]
    for (label, ranks), number in zip(lines, numbers, strict=True):
        where = ""
        if nodes is not None and ranks:
            names = list(dict.fromkeys(str(nodes[rank]) for rank in ranks))
            where = f"node{'s' * (len(names) > 1)} {' '.join(names)}"
        text.append(f"{label:{width}}{number:{column}}{where}".rstrip())
    return "\n".join(text)


def _listed(ranks: Sequence[int]) -> str:
    """'1 2 3', or '1 to 64' for more than four consecutive ranks."""
    if len(ranks) > 4 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    return " ".join(map(str, ranks))


def _draw(knot: Knot, first: str, rest: str, lines: list[tuple[str, list[int]]]) -> None:
    """Append the knot's line, which begins with `first`, and its children's, with `rest`."""
    lines.append((first + knot.label, knot.ranks))
    for child in knot.below:
        last = child is knot.below[-1]
        _draw(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "), lines)
