"""Serial training: one process, the whole batch; the reference for every parallel rule.

g <- gradient(w, batch);   w <- update(w, g)
"""

from mpi4py import MPI

from numba_kernels.optimizers import Optimizer
from numba_kernels.step.step import Step
from numba_kernels.team.collectives import Collectives
from numba_kernels.team.team import Team

from ..replica.base import Replica
from .base import OneModel
from .synchronous import TwoSteps


class Serial(OneModel):
    """Training by one rank alone; several would each end with a different model."""

    def check_team(self, team: Collectives) -> None:
        if team.size > 1:
            words = f"strategy 'serial' uses 1 rank, not {team.size}; 'synchronous' uses them all"
            raise ValueError(words)

    @property
    def team(self) -> Team:
        """The rank that trains; if none was given, this one."""
        if self._team is None:
            self.join(Team(MPI.COMM_SELF))
        return self._team

    def check_optimizer(self, optimizer: Optimizer) -> None:
        pass  # it takes all of them

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        self.take(replica)
        self.replica = replica
        if optimizer.undivided:
            self.update = TwoSteps(
                self.team, replica, optimizer, "auto", clip_norm, None, self.holding
            )
            return
        self.update = Step(  # with one rank there is nothing to reduce: only the update is left
            self.team, optimizer, replica.parameters, replica.gradient, replica.segments, clip_norm
        )
