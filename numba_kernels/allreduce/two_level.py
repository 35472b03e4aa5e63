"""Allreduce in two levels: shared memory within a node, messages between nodes only.

The vector is cut into as many lanes as each node has ranks. Local rank i of each node owns lane i:
it sums its lane over its node, takes part in an allreduce of that lane with its counterparts on
the other nodes, and distributes the result on its node.

    node 0   rank 0 [lane 0]<----------------+        1  reduce-scatter in the node
             rank 1 [lane 1]<------------+   |
                                         |   |        2  allreduce of each lane between the nodes,
    node 1   rank 2 [lane 0]<------------|---+           all lanes at the same time
             rank 3 [lane 1]<------------+
                                                      3  allgather in the node

Cost with q ranks on each of k nodes: 2(q-1)/q n through the node's memory, and q allreduces of n/q
between k ranks at once, which share the network. Every byte leaves a node once, not q times.
Thakur, Rabenseifner and Gropp (2005), section 6; Jain et al., EuroMPI 2018, for the lanes.
"""

import numpy as np

from . import shared_memory, staged
from .elementwise import bounds
from .gather import allgather


def allreduce(team, call: int, x: np.ndarray, op: int, divisor: int, between) -> None:
    """Reduce the flat `x` in place; `between` is the allreduce kernel to use between nodes."""
    edges = team.lanes.edges(x.size)
    inside = divisor if team.single_node else 1  # a mean is divided once, at the end
    if not team.on_node(shared_memory.reduce_scatter, call, x, edges, op, inside):
        team.on_node(staged.allreduce, call, x, edges, op, inside, False)
    if team.lanes.route and not team.single_node:
        lane = x[slice(*edges[team.place : team.place + 2])]
        arguments = (lane, team.scratch(lane.size, x.dtype), op, divisor)
        team.by_messages(call, x.size, x.dtype, between, arguments, team.lanes.route)
    else:
        team.skip()
    if not team.on_node(shared_memory.allgather, call, x, edges):
        team.on_node(allgather, call, x, edges)


class Lanes:
    """Which ranks on the nodes own the same lane; the smallest node determines the number of lanes.

    `nodes` are the ranks of every node, in order; this rank is at `place` of nodes[here]. `route`
    makes a `messages.Route` between given ranks; as an attribute, it is None on a rank without a
    lane.
    """

    def __init__(self, nodes: list[tuple[int, ...]], here: int, place: int, route):
        self.count = min(map(len, nodes))
        self.idle = len(nodes[here]) - self.count
        self.route = route([node[place] for node in nodes]) if place < self.count else None

    def edges(self, n: int) -> np.ndarray:
        """Where lanes begin and end; a rank of this node without a lane gets an empty one."""
        ends = [bounds(n, self.count, lane)[1] for lane in range(self.count)]
        return np.array([0, *ends, *[n] * self.idle], np.int64)
