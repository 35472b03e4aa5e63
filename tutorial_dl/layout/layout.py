"""`Layout`: how many ranks a run needs, and which role each rank has.

NNLO's talk counts nodes = 1 + N_G N_F (N_M N_W N_GPU): the coordinator of a search, parameter sets
tried at once, folds, masters, workers per master, devices per worker. Here masters are ranks, too:

    ranks = [1] + N_G N_F (M + N_M N_W N_GPU)

with M = 1 for one master, N_M + 1 for N_M >= 2 (sub-masters under one master), and M = 0 for
N_M = 0 (no master: N_W N_GPU ranks reduce together). The [1] is there only if there is a search.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING

from tutorial_dl.layout import axes
from tutorial_dl.layout.counts import Counts, in_words
from tutorial_dl.layout.placing import Places
from tutorial_dl.layout.roles import Role
from tutorial_dl.layout.tree import tree

if TYPE_CHECKING:
    from tutorial_dl.figure_style import Figure

# How many of the axes the coordinates of a rank have, by its role
KNOWN = {"coordinator": 0, "master": 2, "sub_master": 3, "worker": None}


@dataclass(frozen=True)
class Layout(Counts):
    """Numbers of ranks by role.

    Args:
        groups: Parameter sets that a search tries at once, N_G.
        folds: Folds of cross-validation that are trained at once, N_F.
        masters: N_M. 1: one master. 2 or more: sub-masters under one master. 0: no master, all
            ranks train synchronously.
        workers: Workers per master, or in all if there is no master, N_W.
        devices: Ranks per worker, which compute one batch together, N_GPU.
        search: Whether there is a coordinator; None: only with more than one group or fold.

    Raises:
        ValueError: If a number is too low, or a search has no coordinator.

    >>> Layout(masters=2, workers=3, devices=2).ranks
    15
    """

    def roles(self, nodes: Sequence[Hashable] | None = None) -> list[Role]:
        """The role of each rank, in the order of ranks.

        Rank 0 is the coordinator; without one it is the master, if there is one. As many workers as
        possible have all their ranks on one node (see placing.py), in ascending order.

        Args:
            nodes: The node of each rank, a number or a name, shape (ranks,); None: all on one node.

        Raises:
            ValueError: If `nodes` has not the number of ranks that the layout needs.
        """
        nodes = [0] * self.ranks if nodes is None else list(nodes)
        self.check_ranks(len(nodes))
        blocks = list(product(range(self.groups), range(self.folds)))
        places = Places(nodes, self.devices, len(blocks) * self.workers_each)
        roles: list[Role] = []
        if self.search:
            roles.append(Role(places.first(), "coordinator", None, None, None, None, None))
        node = nodes[0]
        for group, fold in blocks:
            found = self._block(places, group, fold, node, leads=not roles)
            node = nodes[found[-1].rank]
            roles += found
        return sorted(roles)

    def _block(
        self, places: Places, group: int, fold: int, near: Hashable, leads: bool
    ) -> list[Role]:
        """The roles of one group and fold, close to node `near`; `leads`: its master is rank 0."""
        roles, top = [], None
        node = places.node_for(self.ranks_each, near)
        if self.masters:
            top = places.first() if leads else places.single(node)
            roles.append(Role(top, "master", group, fold, None, None, None))
            node = places.nodes[top]
        for star in range(max(self.masters, 1)):
            hub, size = top, self.workers * self.devices
            if self.masters >= 2:
                node = places.node_for(size + 1, node)
                hub = places.single(node)
                roles.append(Role(hub, "sub_master", group, fold, top, None, None))
                node = places.nodes[hub]
            else:
                node = places.node_for(size, node)
            for worker in range(star * self.workers, (star + 1) * self.workers):
                ranks = places.worker(node)
                node = places.nodes[ranks[-1]]
                for device, rank in enumerate(sorted(ranks)):
                    roles.append(Role(rank, "worker", group, fold, hub, worker, device))
        return roles

    @property
    def axes(self) -> dict[str, int]:
        """The named axes of the ranks that compute gradients, each with its size.

        In the order of ranks: on one node, the last axis varies fastest. A subclass may divide the
        last one, for example into "data", "pipeline" and "tensor".

        >>> Layout(masters=2, workers=3, devices=2).axes
        {'group': 1, 'fold': 1, 'master': 2, 'worker': 3, 'device': 2}
        """
        return {
            "group": self.groups,
            "fold": self.folds,
            "master": max(self.masters, 1),
            "worker": self.workers,
            "device": self.devices,
        }

    def coordinates(self, nodes: Sequence[Hashable] | None = None) -> list[dict[str, int]]:
        """The coordinates of each rank by axis, in the order of ranks; `nodes` as for `roles`.

        A master has only those of its group and fold, a sub-master also which of the masters it
        is; a coordinator has none.

        >>> Layout(masters=2, workers=3, devices=2).coordinates()[13]
        {'group': 0, 'fold': 0, 'master': 1, 'worker': 2, 'device': 0}
        """
        roles, found = self.roles(nodes), []
        below = {role.master: role.worker for role in roles if role.worker is not None}
        for role in roles:
            worker = below.get(role.rank, 0) if role.worker is None else role.worker
            block = (role.group or 0) * self.folds + (role.fold or 0)
            number = (block * self.workers_each + worker) * self.devices + (role.device or 0)
            every = axes.coordinates(self.axes, number)
            found.append(dict(islice(every.items(), KNOWN[role.role])))
        return found

    def along(self, name: str, rank: int, nodes: Sequence[Hashable] | None = None) -> list[int]:
        """The ranks that share all coordinates with `rank` but the one called `name`, in its order.

        They are a team: along "device" the ranks that compute a batch together, along "fold" those
        that do the same in other folds. A rank without that coordinate is alone.

        >>> Layout(masters=2, workers=3, devices=2).along("device", 13)
        [13, 14]
        >>> Layout(masters=2, workers=3, devices=2).along("master", 13)
        [6, 13]

        Raises:
            ValueError: If there is no such axis.
        """
        if name not in self.axes:
            raise ValueError(f"axis {name!r}: expected one of {', '.join(self.axes)}")
        every = self.coordinates(nodes)
        own = every[rank]
        if name not in own:
            return [rank]
        kept = own.keys() - {name}
        same = [
            other
            for other, place in enumerate(every)
            if place.keys() == own.keys() and all(place[axis] == own[axis] for axis in kept)
        ]
        return sorted(same, key=lambda other: every[other][name])

    def text(self, nodes: Sequence[Hashable] | None = None) -> str:
        """The layout as a tree in text; `nodes` as for `roles`."""
        return tree(self, nodes)

    __str__ = text

    def figure(self, nodes: Sequence[Hashable] | None = None) -> Figure:
        """The tree as a figure; `nodes` (as for `roles`), if given, are drawn below it."""
        from tutorial_dl.layout.figure import draw_layout

        return draw_layout(self, nodes)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return self.figure()._repr_mimebundle_()


def layout_of(rule, team) -> Layout:
    """The layout of a rule's run on `team`; ValueError if it does not fit."""
    if rule.layout is None:
        return Layout.for_ranks(team.size)
    layout = rule.layout
    if layout.search or not layout.masters:
        raise ValueError(f"{rule} needs one group with a master, not {in_words(layout)}")
    layout.check_ranks(team.size)
    return layout


def nodes_of(team) -> list[int]:
    """The number of each rank's node."""
    numbers = {rank: number for number, ranks in enumerate(team.nodes) for rank in ranks}
    return [numbers[rank] for rank in range(team.size)]
