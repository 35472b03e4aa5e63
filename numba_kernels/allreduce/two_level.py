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

Short vectors take another way, with the same bits: leaders.py. `plan` chooses.
"""

import numpy as np

from . import costs, leaders, learning, pairwise, rabenseifner, recursive_doubling, shared_memory
from . import staged as through_stage
from .elementwise import bounds
from .gather import allgather
from .kernel import NOTHING, follow, table
from .messages import addresses

# Between nodes: by name as in costs.py. All add in the same order, so the choice changes no bits.
BETWEEN = {
    "recursive_doubling": recursive_doubling.farthest_first,
    "rabenseifner": rabenseifner.steps,
    "pairwise": pairwise.allreduce,  # a kernel, the others are steps
}
SHORT = 2048  # bytes: up to here, the fewest messages are the fastest on any link


def allreduce(team, call: int, x: np.ndarray, op: int, divisor: int) -> None:
    """Reduce the flat `x` in place."""
    way = plan(team, call, x)
    if way == "leaders":
        incoming, route = team.scratch(x.size, x.dtype), team.lanes.route
        rows = NOTHING
        if team.place == 0:
            rows = table(BETWEEN["recursive_doubling"], route.rank, route.ranks, x.size)
        team.by_leaders(leaders.allreduce, call, x, incoming, op, divisor, rows)
        return

    def between(lane: np.ndarray) -> None:
        if way == "pairwise":
            incoming = team.scratch(pairwise.scratch_of(lane.size, len(team.nodes)), x.dtype)
            arguments = (lane, incoming, op, divisor)
            team.by_messages(call, x.size, x.dtype, BETWEEN[way], arguments, team.lanes.route)
        else:
            follow(team, call, BETWEEN[way], lane, op, divisor, team.lanes.route, x.size)

    # A mean is divided once, at the end
    in_lanes(team, call, x, op, divisor if team.single_node else 1, between)


def in_lanes(team, call: int, x: np.ndarray, op: int, divisor: int, between, number=1) -> None:
    """Reduce the flat `x` on each node, have `between(lane)` reduce lanes, in `number` collectives
    over their routes, and distribute them on the nodes; in place.
    """
    edges = team.lanes.edges(x.size)
    alone, flat = len(team.node) == 1, max(map(len, team.nodes)) == 1
    if flat:
        pass  # the messages are the first thing that all ranks do, and are numbered so
    elif alone:
        team.skip()
    elif not team.on_node(shared_memory.reduce_scatter, call, x, edges, op, divisor):
        team.on_node(through_stage.allreduce, call, x, edges, op, divisor, False)
    if team.lanes.route and not team.single_node:
        between(x[slice(*edges[team.place : team.place + 2])])
    else:
        for _ in range(number):
            team.skip()
    if flat:
        pass
    elif alone:
        team.skip()
    elif not team.on_node(shared_memory.allgather, call, x, edges):
        team.on_node(allgather, call, x, edges)


def plan(team, call: int, x: np.ndarray) -> str:
    """Return "leaders", or the key of BETWEEN for lanes; the same on all ranks.

    The first vector for which it matters has the team learn its link (learning.py).
    """
    if team.single_node or x.nbytes <= SHORT:
        several = max(map(len, team.nodes)) > 1  # ranks on some node
        return "leaders" if several and x.nbytes <= SHORT else "recursive_doubling"
    if team.machine.message is costs.UNMEASURED.message:
        learning.learn(team, call, x.size)
    short = x.nbytes <= leaders.LONGEST
    return costs.between_nodes(x.nbytes, len(team.nodes), team.machine, short)


class Lanes:
    """Which ranks on the nodes own the same lane; the smallest node determines the number of lanes.

    `nodes` are the ranks of every node, in order; this rank is at `place` of nodes[here]. `route`
    makes a `messages.Route` between given ranks; as an attribute, it is None on a rank without a
    lane. `everyone` is the route between all ranks.
    """

    def __init__(self, nodes: list[tuple[int, ...]], here: int, place: int, route, everyone):
        self.count = min(map(len, nodes))
        self.idle = len(nodes[here]) - self.count
        self.route = route([node[place] for node in nodes]) if place < self.count else None
        # For leaders.py: (link, addresses); those of a rank that is no leader are never looked at.
        own = self.route if place == 0 else everyone
        self.leading = own.link, addresses(own)

    def edges(self, n: int) -> np.ndarray:
        """Where lanes begin and end; a rank of this node without a lane gets an empty one."""
        ends = [bounds(n, self.count, lane)[1] for lane in range(self.count)]
        return np.array([0, *ends, *[n] * self.idle], np.int64)
