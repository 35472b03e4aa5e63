"""`Grid`: ranks = D x S, D copies of a model that is cut into the stages of S ranks.

Ranks are numbered along the pipeline first (layout/axes.py), so neighbours in a pipeline are
neighbours on a node:

    S = 3, D = 2      copy 0: ranks 0 1 2      copy 1: ranks 3 4 5
"""

from __future__ import annotations

from numba_kernels.team.team import Team
from tutorial_dl.layout.axes import coordinates, sizes


class Grid:
    """The ranks of `team` as D pipelines of `pipeline` ranks each. Making it is collective.

    Attributes:
        team: All ranks.
        pipe: The ranks of this rank's pipeline, in order: together they hold one model.
        copies: The ranks that hold copies of this rank's part, one per pipeline.
        axes: {"data": D, "pipeline": S}.
    """

    def __init__(self, team: Team, pipeline: int) -> None:
        self.team, self.axes = team, sizes(team.size, pipeline)
        place = coordinates(self.axes, team.rank)
        self.pipe = team.split(place["data"])
        self.copies = team.split(place["pipeline"])

    def fail(self, error: BaseException) -> None:
        """Tell all ranks of this rank's teams that it failed; they raise PeerError."""
        for team in (self.pipe, self.copies, self.team):
            team.abort(error)

    def recover(self) -> None:
        """Make the parts usable again, after all ranks have recovered `team`. Collective."""
        for team in (self.pipe, self.copies):
            team.recover()

    def __repr__(self) -> str:
        return f"Grid({self.axes}, rank {self.team.rank})"
