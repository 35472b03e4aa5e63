"""Place workers on nodes, so that as many workers as possible lie on one node each.

Each worker has D ranks; every master or coordinator is a single rank. A node with f free ranks has
room for at most floor(f / D) whole workers. Placing a worker on a node lowers that number by one;
placing a single rank on a node with f mod D > 0 does not lower it. So the number of whole workers
is the largest possible (all of them, if any placement achieves that) as long as

- a worker takes any node that has room for it,
- a single rank takes a node where no worker loses room; there always is one (`single`).

The choice among those nodes is free. It serves a second aim: a master shares a node with its
workers, where a message is a store to shared memory. That choice is greedy and may not be optimal.
Nor may the split of workers that don't fit on one node: it always takes the largest free piece.
"""

from collections.abc import Hashable, Sequence


class Places:
    """The ranks that have no role yet, and the number of workers (of D = `size` ranks) to place.

    `nodes` holds the node of each rank, by any hashable name, shape (ranks,).
    """

    def __init__(self, nodes: Sequence[Hashable], size: int, workers: int):
        self.nodes, self.size, self.workers = nodes, size, workers
        self.free: dict[Hashable, list[int]] = {}
        for rank, node in enumerate(nodes):
            self.free.setdefault(node, []).append(rank)

    def first(self) -> int:
        """Take rank 0, for the coordinator or master at the top: outside tools expect it there."""
        self.free[self.nodes[0]].remove(0)
        return 0

    def node_for(self, ranks: int, near: Hashable) -> Hashable:
        """A node for `ranks` ranks that belong together: `near`, or the fullest one with room.

        If no node has room for all: `near` if it has room for one worker, else the emptiest node.
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
        """Take a rank where no worker loses room: on `near`, or else on the emptiest such node.

        One exists: with s single ranks and k workers still to place, s + k D ranks are free. If
        the nodes have room for exactly k workers, at least s > 0 ranks are left over on some node.
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
        """Take the ranks of a worker: from `near`, from another node, or in pieces."""
        self.workers -= 1
        ranks: list[int] = []
        while len(ranks) < self.size:
            missing = self.size - len(ranks)
            room = {node: len(free) for node, free in self.free.items()}
            node = near if room.get(near, 0) >= missing else max(room, key=room.__getitem__)
            ranks += self.free[node][:missing]
            del self.free[node][:missing]
        return ranks
