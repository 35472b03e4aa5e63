"""A layout as a tree to draw: which rank reports to which, shortened if there are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tutorial_dl.layout.roles import Role


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
