"""A layout as a tree: which rank reports to which, shortened if there are many; `tree` as text."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tutorial_dl.layout.counts import in_words
from tutorial_dl.layout.roles import Role
from tutorial_dl.words import counted

SHOWN = 8  # most children shown below one parent


class Knot(NamedTuple):
    """A rank, or all ranks of a worker, and those below it."""

    role: str  # of the rank; "block": a group and fold without a master; "more": those left out
    label: str
    ranks: list[int]
    below: list[Knot]


def roots(roles: Sequence[Role]) -> list[Knot]:
    """The knots with no parent: the coordinator, or the master, or workers without a master."""
    if roles[0].role != "coordinator":
        return _block(roles)
    blocks: dict[tuple, list[Role]] = {}
    for role in roles[1:]:
        blocks.setdefault((role.group, role.fold), []).append(role)
    below = []
    for (group, fold), own in sorted(blocks.items()):
        name, found = f"group {group}, fold {fold}", _block(own)
        if found[0].role == "master":
            below.append(found[0]._replace(label=f"{name}: master"))
        else:
            below.append(Knot("block", name, [], found))
    return [Knot("coordinator", "coordinator", [0], below)]


def _block(roles: Sequence[Role]) -> list[Knot]:
    """The roots of one group and fold."""
    workers: dict[int | None, dict[int, list[int]]] = {}  # master -> worker -> ranks
    for role in roles:
        if role.worker is not None:
            of_master = workers.setdefault(role.master, {})
            of_master.setdefault(role.worker, []).append(role.rank)

    def below(master: int | None) -> list[Knot]:
        return [
            Knot("worker", f"worker {worker}", ranks, [])
            for worker, ranks in sorted(workers.get(master, {}).items())
        ]

    subs = [
        Knot("sub_master", "sub-master", [r.rank], below(r.rank))
        for r in roles
        if r.role == "sub_master"
    ]
    subs.sort(key=lambda sub: min(workers[sub.ranks[0]]))
    tops = [r.rank for r in roles if r.role == "master"]
    return [Knot("master", "master", [top], subs or below(top)) for top in tops] or below(None)


def shortened(knots: Sequence[Knot], most: int) -> list[Knot]:
    """The tree with at most `most` (>= 3) children per knot: the first ones and the last."""
    knots = [knot._replace(below=shortened(knot.below, most)) for knot in knots]
    if len(knots) <= most:
        return knots
    left_out = len(knots) - most + 1
    return [*knots[: most - 2], Knot("more", f"... {left_out} more", [], []), knots[-1]]


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
    text = [f"{in_words(layout)}: {counted(layout.ranks, 'rank')}"]
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
