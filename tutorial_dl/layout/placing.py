"""Which ranks a worker gets, so that it lies on one node wherever nodes allow.

All workers have the same number of ranks, D, and everybody else is a single rank. A node with f
free ranks takes at most floor(f / D) whole workers. Giving a worker D ranks of a node lowers that
node's number by one, and giving a single rank from a node with f mod D > 0 lowers none. So the most
workers are whole, all of them if any way of placing them does that, as long as

- a worker takes a node that has room for it, whichever,
- a single takes a node where it costs no worker its room, and there always is one (`single`).

Which of those nodes is taken is free, and chosen for the second aim: a master beside its workers,
where a message is a store to memory. That choice is greedy, and may miss the best. So may the cut
of those workers that cannot be whole: always the largest piece that there is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class Places:
    """The ranks that have no role yet.

    Args:
        nodes: The node of each rank, any names, (ranks,).
        size: Ranks of a worker.
        workers: How many of them are to be placed.
    """

    def __init__(self, nodes: Sequence[Hashable], size: int, workers: int):
        self.nodes, self.size, self.workers = nodes, size, workers
        self.free: dict[Hashable, list[int]] = {}
        for rank, node in enumerate(nodes):
            self.free.setdefault(node, []).append(rank)

    def first(self) -> int:
        """Rank 0, for the one that leads them all: outside tools look for it there."""
        self.free[self.nodes[0]].remove(0)
        return 0

    def node_for(self, ranks: int, near: Hashable) -> Hashable:
        """A node for `ranks` ranks that belong together: `near`, or the one that they fill best.

        If none has room for all, one that has room for some: `near`, or where most are free.
        """
        if len(self.free.get(near, ())) >= ranks:
            return near
        fitting = [node for node, free in self.free.items() if len(free) >= ranks]
        if fitting:
            return min(fitting, key=lambda node: len(self.free[node]))
        if len(self.free.get(near, ())) >= self.size:
            return near
        return max(self.free, key=lambda node: len(self.free[node]))

    def single(self, near: Hashable) -> int:
        """A rank that costs no worker its room: on `near`, or else where most are free.

        With s singles and k workers to come, s + k D ranks are free. If no more than k workers
        have room, at least s > 0 of those are beyond the multiples of D: on such a node.
        """
        room = sum(len(free) // self.size for free in self.free.values())
        harmless = {
            node: len(free)
            for node, free in self.free.items()
            if free and (room > self.workers or len(free) % self.size)
        }
        node = near if near in harmless else max(harmless, key=harmless.__getitem__)
        return self.free[node].pop(0)

    def worker(self, near: Hashable) -> list[int]:
        """The ranks of a worker, in order: of `near`, of another node, or in pieces."""
        self.workers -= 1
        ranks: list[int] = []
        while len(ranks) < self.size:
            missing = self.size - len(ranks)
            room = {node: len(free) for node, free in self.free.items()}
            node = near if room.get(near, 0) >= missing else max(room, key=room.__getitem__)
            ranks += self.free[node][:missing]
            del self.free[node][:missing]
        return ranks
