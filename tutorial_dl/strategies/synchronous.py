"""Synchronous data parallelism: every rank its share of each batch, one common update.

    rank i:      g_i <- gradient(w, its s_i samples of the batch)
    all ranks:   g   <- sum_i s_i g_i / sum_i s_i          the gradient of the whole batch
    all ranks:   w   <- update(w, g)                       the same w everywhere

The weights s_i make it exact: p ranks do what one process would on the whole batch, also when the
batch does not divide by p. Chen et al., arXiv 1604.00981; Goyal et al., arXiv 1706.02677.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.fused import Step
from numba_kernels.optimizers import Optimizer
from numba_kernels.team import Team
from numba_kernels.window import aligned

from ..replica.base import Batch, Replica, finite_gradient


class Synchronous:
    """All ranks of `team` (of the whole run if None) as if they were one.

    Args:
        team: the ranks that train together
        algorithm: "fused" reduces, updates and hands out the weights in one pass, with the
            optimizer's state cut among the ranks (numba_kernels.fused). The name of an allreduce
            algorithm ("auto", "naive", "tree", "ring", "shared_memory") does the textbook's two
            steps instead, with the whole state on every rank: slower, and easier to follow.
        one_copy: all ranks of a node work with one copy of the weights, which saves p - 1 copies
            of them (docs/memory.md); for "fused" only. Where ranks share no memory it changes
            nothing.
    """

    def __init__(self, team: Team | None = None, algorithm: str = "fused", one_copy: bool = False):
        if one_copy and algorithm != "fused":
            raise ValueError(
                f"one copy of the weights, but algorithm {algorithm!r} has every rank update its "
                "own: 'fused' is needed"
            )
        self.team, self.algorithm, self.one_copy = team or Team(), algorithm, one_copy

    def attach(self, replica: Replica, optimizer: Optimizer) -> None:
        """Give every rank the weights of rank 0, and move both vectors into the window."""
        self.replica, self.optimizer = replica, optimizer
        n, dtype = replica.parameters.size, replica.parameters.dtype
        self.team.broadcast(replica.parameters)
        # One after the other: what the first one leaves is free before the second takes memory.
        replica.place(self._weights(n, dtype), replica.gradient)
        replica.place(replica.parameters, self.team.empty(n, dtype))
        if replica.state.size:
            replica.state = self.team.broadcast(replica.state.copy())
        self._seen = 0  # samples of this rank since its state was averaged
        if self.algorithm == "fused":
            self.update = Step(
                self.team, optimizer, replica.parameters, replica.gradient, replica.segments
            )
        else:
            self.state = optimizer.init(n, dtype, replica.segments)
            self.update = self._textbook

    def _weights(self, n: int, dtype) -> np.ndarray:
        """Memory for the weights: in the window only where others write there."""
        if self.algorithm == "fused":
            return self.team.empty(n, dtype, common=self.one_copy)
        return aligned(n, dtype)

    def step(self, batch: Batch) -> tuple[float, int]:
        """One update; returns the mean loss over all ranks' samples, and how many those are."""
        loss, samples = finite_gradient(self.replica, batch)
        self._seen += samples
        return self.update(loss, samples)

    def average_state(self) -> None:
        """Average what is not optimised (moving statistics), weighted by the samples seen."""
        if self.replica.state.size and self.team.size > 1:
            weighted = np.append(self.replica.state * self._seen, self._seen)
            self.team.allreduce(weighted)  # sums
            if weighted[-1]:
                self.replica.state = (weighted[:-1] / weighted[-1]).astype(self.replica.state.dtype)
        self._seen = 0

    def _textbook(self, loss: float, samples: int) -> tuple[float, int]:
        g = self.replica.gradient
        total, loss = self.team.allreduce(np.array([samples, samples * loss]))  # sums
        if total:
            g *= g.dtype.type(samples / total)
            self.team.allreduce(g, "sum", self.algorithm)
            self.optimizer.update(self.replica.parameters, g, self.state)
        return (float(loss / total) if total else 0.0), int(total)
