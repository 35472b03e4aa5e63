"""The machine that costs are predicted for: measured curves, or the textbook's straight lines."""

from bisect import bisect_right
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Curve:
    """Seconds as a function of bytes: linear between measured points and beyond the last one."""

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    def __call__(self, nbytes: float) -> float:
        if len(self.sizes) == 1 or nbytes <= self.sizes[0]:
            return self.seconds[0]
        i = min(bisect_right(self.sizes, nbytes), len(self.sizes) - 1)
        slope = (self.seconds[i] - self.seconds[i - 1]) / (self.sizes[i] - self.sizes[i - 1])
        return self.seconds[i - 1] + slope * (nbytes - self.sizes[i - 1])


@dataclass(frozen=True)
class Machine:
    """The measurements of `measure(team)`, or what a machine is said to do.

    Curves are None where they do not apply.
    """

    alpha: float  # latency, seconds per message, fitted to `message`
    beta: float  # seconds per byte sent, fitted to `message`
    gamma: float  # seconds per byte added, fitted to `add`
    message: Curve  # one message from one rank to another
    exchange: Curve  # all ranks at once, each sends and receives one message
    add: Curve  # adding a vector that has just arrived
    window: Curve | None = None  # allreduce in place in a window, all ranks on one node
    staged: Curve | None = None  # allreduce of an ordinary array, all ranks on one node
    inside: Curve | None = None  # the same in each node: a reduce-scatter and an allgather
    lane: Curve | None = None  # exchange between nodes, all ranks at once
    single: Curve | None = None  # exchange between nodes, one rank of each
    leaders: Curve | None = None  # the node's part of leaders.py
    library: Curve | None = None  # the MPI library's allreduce
    call: float = 0.0  # seconds that a call takes besides its messages
    ranks: int = 0  # that took part
    per_node: int = 1  # smallest number of ranks on a node
    nodes: int = 0  # 0: ranks / per_node
    memory: float = inf  # bytes per rank
    flops: float = inf  # operations per second that a rank reaches

    def link(self, span: int) -> Curve:
        """A message within groups of `span` neighbouring ranks: between nodes, if any needs it."""
        return self.message if self.lane is None or self.per_node % span == 0 else self.lane


def straight(alpha: float, beta: float, gamma: float) -> Machine:
    """Return the textbook's machine: a message takes alpha + beta m, an addition gamma m.

    Example:
        >>> from numba_kernels.allreduce.costs import predict
        >>> seconds = predict("ring", 1e6, 4, straight(1e-6, 1e-9, 0))
        >>> round(seconds, 9)  # 6 alpha + 1.5e6 beta
        0.001506
    """
    line = Curve((0, 1), (alpha, alpha + beta))
    return Machine(alpha, beta, gamma, line, line, Curve((0, 1), (0, gamma)))


UNMEASURED = straight(1e-6, 1 / 8e9, 1 / 8e9)  # the order of magnitude on one node
