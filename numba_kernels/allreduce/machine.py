"""The machine that costs.py predicts for: measured curves, or the textbook's straight lines."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Seconds by bytes: straight lines between measured points, and beyond the last one."""

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
    """What `measure(team)` found out.

    Attributes:
        alpha, beta, gamma: the textbook's three, fitted to the curves of messages and additions
        message: curve of one message, from one rank to another
        exchange: of all ranks at once, each sends one and receives one
        add: of the addition of a vector that has just arrived
        window, staged: of an allreduce in the memory of the node that all ranks are on: in place
            in a window, and of an ordinary array
        inside: of a reduce-scatter and an allgather of an ordinary array within each node
        lane: of an exchange between nodes, all ranks at once
        library: of the MPI library's allreduce
        call: seconds that a call takes besides its messages
        ranks: how many took part; per_node: the least number of them on a node

    A curve is None where there is no such thing, or where it has not been measured.
    """

    alpha: float
    beta: float
    gamma: float
    message: Curve
    exchange: Curve
    add: Curve
    window: Curve | None = None
    staged: Curve | None = None
    inside: Curve | None = None
    lane: Curve | None = None
    library: Curve | None = None
    call: float = 0.0
    ranks: int = 0
    per_node: int = 1


def straight(alpha: float, beta: float, gamma: float) -> Machine:
    """The textbook's machine: every message alpha + beta m, every addition gamma m.

    >>> from numba_kernels.allreduce.costs import predict
    >>> predict("ring", 1e6, 4, straight(1e-6, 1e-9, 0))  # 6 alpha + 1.5e6 beta
    0.001506
    """
    line = Curve((0, 1), (alpha, alpha + beta))
    return Machine(alpha, beta, gamma, line, line, Curve((0, 1), (0, gamma)))


UNMEASURED = straight(1e-6, 1 / 8e9, 1 / 8e9)  # a node's order of magnitude
