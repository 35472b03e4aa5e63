"""`Topology`: this rank's role in a run with a master, and the stars that it belongs to."""

import numpy as np
from mpi4py import MPI

from numba_kernels.errors import numbered
from numba_kernels.star.star import Star
from numba_kernels.team.team import Team

from ...layout import Layout, hub_ranks
from ...layout.layout import nodes_of
from .tasks import AsynchronousTasks, SynchronousTasks, Tasks, TasksOfGroups


def computing_team(team, layout: Layout) -> Team:
    """The ranks of `team` that compute a batch together with this one (one rank if alone)."""
    if layout.devices == 1:
        return Team(MPI.COMM_SELF)
    return team.split(layout.along("device", team.rank, nodes_of(team))[0])


class Topology:
    """This rank's role, and its ends of stars, for one run. Construction is collective."""

    def __init__(self, run):
        self.run, self.team, self.layout = run, run.team, run.layout
        own, nodes = self.team.rank, nodes_of(self.team)
        self.roles = self.layout.roles(nodes)
        # The ranks that compute a batch together with this one, in their order:
        self.mate_ranks = self.layout.along("device", own, nodes)
        self.role = self.roles[own]
        # The star of the top master and that of this rank's sub-master, and their ranks, the hub
        # first; None and [] if this rank is not in it.
        tops = hub_ranks(self.roles, 0)
        self.top_ranks = tops if own in tops else []
        self.at_top = self._star(tops)
        self.group_ranks, self.in_group = [], None
        for sub in tops[1:] if self.layout.masters >= 2 else ():
            ranks = hub_ranks(self.roles, sub)
            star = self._star(ranks)
            if star is not None:
                self.group_ranks, self.in_group = ranks, star

    def _star(self, ranks: list[int]) -> Star | None:
        """A star of `ranks`, with the first as hub; None if this rank is not one of them."""
        own, run = self.team.rank, self.run
        others = [rank for rank in range(self.team.size) if rank not in ranks]
        members = ranks if own in ranks else others
        team = self.team.split(own in ranks, key=members.index(own))
        rule, replica = run.strategy, run.replica
        n = replica.parameters.size
        with numbered(members):
            if own not in ranks:  # each split makes a team of the other ranks, too
                return team.close()
            return Star(
                team, n + replica.state.size, n + replica.state.size, replica.parameters.dtype,
                in_place=rule.sends == rule.receives == "parameters",
                kept=rule.kept * (n + 64),  # memory of the master that its workers can reach
            )  # fmt: skip

    def close(self) -> None:
        """Free the run's resources. Collective, when all ranks are done."""
        self.team.barrier()
        for star, ranks in ((self.at_top, self.top_ranks), (self.in_group, self.group_ranks)):
            if star is not None:
                with numbered(ranks):
                    star.close()
                    star.team.close()

    def home(self, rule) -> np.ndarray:
        """The star's memory for the master's weights; moves the rule's state there, too."""
        star = self.at_top if self.is_top else self.in_group
        weights = star.keep(self.run.replica.parameters.size)
        if rule.state is not None:
            star.adopt(rule.state)
        return weights

    @property
    def is_top(self) -> bool:
        return self.team.rank == 0

    def tasks(self, first: int, last: int, begun: list[dict]) -> Tasks:
        """On the top master: all tasks of epochs first ... last - 1."""
        rule, samples = self.run.strategy, len(self.run.dataset.train)
        kind, every = self._kind, rule.every
        if self.layout.masters >= 2 and rule.synchronous:
            every *= 1 if rule.upward == "auto" else rule.upward
        elif self.layout.masters >= 2:
            kind, every = TasksOfGroups, samples
        leaves = range(1, len(self.top_ranks))
        found = kind(leaves, samples, self.run.batch_size, first, last, every)
        found.resume(begun)
        return found

    def tasks_of_group(self) -> Tasks:
        """On a sub-master: no tasks yet."""
        leaves = range(1, len(self.group_ranks))
        return self._kind(leaves, 0, self.run.batch_size, 0, 0, self.run.strategy.every)

    @property
    def _kind(self):
        return SynchronousTasks if self.run.strategy.synchronous else AsynchronousTasks
