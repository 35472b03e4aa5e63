"""Serial training: one process, the whole batch; the reference for every parallel rule.

g <- gradient(w, batch);   w <- update(w, g)
"""

from mpi4py import MPI

from numba_kernels.team.team import Team

from ..replica.base import Replica
from .base import Strategy
from .synchronous import Synchronous


class Serial(Synchronous):
    """Training by one rank alone; several would each end with a different model."""

    def __init__(self, team: Team | None = None):
        super().__init__(team)

    def check_team(self, team: Team) -> None:
        if team.size > 1:
            raise ValueError(
                f"strategy 'serial' uses 1 rank, not {team.size}; 'synchronous' uses them all"
            )

    @property
    def team(self) -> Team:
        """The rank that trains; if none was given, this one."""
        if self._team is None:
            self.join(Team(MPI.COMM_SELF))
        return self._team

    def take(self, replica: Replica) -> None:
        Strategy.take(self, replica)  # a whole model
