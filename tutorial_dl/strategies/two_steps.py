"""The synchronous update as a textbook has it: average the gradients, then update, on every rank.

Every rank holds the whole of the optimizer's state and does the whole update. Slower than the one
pass of numba_kernels.fused, but each line can be followed; and between the two steps there is a
place for what needs the whole gradient: compression.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.compression.base import Method
from numba_kernels.optimizers import Optimizer, clip_by_norm
from numba_kernels.spans import span
from numba_kernels.team.team import Team

from ..replica.base import Replica


class TwoSteps:
    """An update of the replica's parameters from all ranks' gradients.

    Args:
        team, replica, optimizer: as in `Synchronous.attach`
        algorithm: the allreduce's
        clip_norm: longest gradient of the whole batch, or None
        compression: the method by which gradients are reduced instead, or None
    """

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
        self.mine = slice(0, n)  # of the parameters that `state` is of
        if compression is not None:
            self.left = compression.init(n, replica.segments, dtype)

    def __call__(self, loss: float, samples: int) -> tuple[float, int]:
        """One update, `gradient` being the mean over this rank's samples; see `fused.Step`."""
        g = self.replica.gradient
        with span("reduce"):
            total, loss = self.team.allreduce(np.array([samples, samples * loss]))  # sums
            if total:
                if self.compression is None:
                    g *= g.dtype.type(samples / total)
                    self.team.allreduce(g, "sum", self.algorithm)
                else:  # the mean over ranks, each with p times its weight
                    g *= g.dtype.type(self.team.size * samples / total)
                    self.compression.allreduce(self.team, g, self.left, "mean")
        if total:
            with span("update"):
                if self.clip_norm is not None:
                    clip_by_norm(g, self.clip_norm)
                self.optimizer.update(self.replica.parameters, g, self.state)
        return (float(loss / total) if total else 0.0), int(total)

    def resume(self) -> None:
        """After a failure: rank 0's weights and state on all ranks. Collective."""
        self.team.broadcast(self.replica.parameters)
        self.team.broadcast(self.state.slots)
        self.state.step = int(self.team.broadcast(np.array([self.state.step]))[0])
        rate = self.team.broadcast(np.array([self.optimizer.learning_rate], np.float64))[0]
        self.optimizer = self.optimizer.at_rate(float(rate))  # that of rank 0's velocity
        if self.compression is not None:  # the basis must be one; what was left behind is dropped
            self.left = self.compression.init(self.left.n, self.replica.segments, self.left.dtype)
