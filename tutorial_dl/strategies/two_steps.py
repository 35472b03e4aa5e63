"""The synchronous update of the textbook (as in DDP): allreduce the gradients, then update.

Every rank holds the whole optimizer state and does the whole update. This is slower than the single
pass of numba_kernels.fused, but easier to follow. And compression, which needs the whole gradient,
fits between the two steps.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.compression.base import Method
from numba_kernels.optimizers import Optimizer, clip_by_norm
from numba_kernels.spans import span
from numba_kernels.team.team import Team

from ..replica.base import Replica


class TwoSteps:
    """Updates the parameters with the gradients of all ranks; arguments as in `Synchronous`."""

    takes_own = False  # the gradient must lie in one vector (see Step.takes_own)

    def __init__(
        self,
        team: Team,
        replica: Replica,
        optimizer: Optimizer,
        algorithm: str = "auto",
        clip_norm: float | None = None,
        compression: Method | None = None,
    ):
        n, dtype = replica.parameters.size, replica.parameters.dtype
        self.team, self.replica, self.optimizer = team, replica, optimizer
        self.algorithm, self.clip_norm, self.compression = algorithm, clip_norm, compression
        self.state = optimizer.init(n, dtype, replica.segments)
        self.mine = slice(0, n)  # the parameters that `state` covers
        if compression is not None:
            self.left = compression.init(n, replica.segments, dtype)

    def __call__(self, loss: float, samples: int) -> tuple[float, int]:
        """One update; `gradient` holds the mean over this rank's samples. See `fused.Step`."""
        g = self.replica.gradient
        with span("reduce"):
            total, loss = self.team.allreduce(np.array([samples, samples * loss]))  # sums
            if total:
                if self.compression is None:
                    g *= g.dtype.type(samples / total)
                    self.team.allreduce(g, "sum", self.algorithm)
                else:  # a mean over ranks: multiply each rank's weight by p
                    g *= g.dtype.type(self.team.size * samples / total)
                    self.compression.allreduce(self.team, g, self.left, "mean")
        if total:
            with span("update"):
                if self.clip_norm is not None:
                    clip_by_norm(g, self.clip_norm)
                self.optimizer.update(self.replica.parameters, g, self.state)
        return (float(loss / total) if total else 0.0), int(total)

    def resume(self) -> None:
        """After a failure: give all ranks the weights and state of rank 0. Collective."""
        self.team.broadcast(self.replica.parameters)
        self.team.broadcast(self.state.slots)
        self.state.step = int(self.team.broadcast(np.array([self.state.step]))[0])
        rate = self.team.broadcast(np.array([self.optimizer.learning_rate], np.float64))[0]
        self.optimizer = self.optimizer.at_rate(float(rate))  # matches rank 0's velocity
        if self.compression is not None:  # one basis for all ranks; residuals are dropped
            self.left = self.compression.init(self.left.n, self.replica.segments, self.left.dtype)
