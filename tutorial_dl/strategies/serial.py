"""Serial training: one process, the whole batch. What every parallel rule is compared with.

g <- gradient(w, batch);   w <- update(w, g)
"""

from __future__ import annotations

from mpi4py import MPI

from numba_kernels.optimizers import Optimizer
from numba_kernels.team import Team

from ..replica.base import Batch, Replica, finite_gradient


class Serial:
    """Training by one rank alone; other ranks, if there are any, are not told of it.

    Args:
        team: None, or a team of one rank. Raises ValueError for a larger one: ranks that train
            without talking to each other end with as many different models.
    """

    def __init__(self, team: Team | None = None):
        if team is not None and team.size > 1:
            raise ValueError(
                f"strategy 'serial' uses 1 rank, not {team.size}; 'synchronous' uses them all"
            )
        self.team = team or Team(MPI.COMM_SELF)

    def attach(self, replica: Replica, optimizer: Optimizer) -> None:
        self.replica, self.optimizer = replica, optimizer
        self.state = optimizer.init(
            replica.parameters.size, replica.parameters.dtype, replica.segments
        )

    def step(self, batch: Batch) -> tuple[float, int]:
        loss, samples = finite_gradient(self.replica, batch)
        if samples:
            self.optimizer.update(self.replica.parameters, self.replica.gradient, self.state)
        return loss, samples

    def average_state(self) -> None:
        """One rank's statistics are their own average."""
