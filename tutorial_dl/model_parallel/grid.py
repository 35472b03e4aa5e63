"""`Grid`: ranks = D x S x C x T, D times the ranks that compute a sample together.

Those are S stages of a model, C parts of each sequence, and T slices of each layer. Ranks are
numbered along the axes (layout/axes.py), the tensor axis innermost, so ranks that exchange most are
neighbours on a node:

    S = 3, D = 2           copy 0: ranks 0 1 2        copy 1: ranks 3 4 5
    S = 2, T = 2, D = 1    stage 0: ranks 0 1         stage 1: ranks 2 3
    C = 2, D = 2           copy 0: ranks 0 1          copy 1: ranks 2 3
    S = 2, C = 2, D = 1    stage 0: ranks 0 1         stage 1: ranks 2 3, parts 0 and 1 of each
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from numba_kernels.team.team import Team
from tutorial_dl.layout.axes import coordinates, number_of, sizes
from tutorial_dl.replica.base import Segment
from tutorial_dl.replica.holding import Holding, Part
from tutorial_dl.words import counted


class Grid:
    """The ranks of `team` along axes of the sizes `pipeline`, `context` and `tensor`; the rest is
    the axis of data. Making it is collective.

    Attributes:
        team: All ranks.
        pipe: The ranks of this rank's pipeline, in order; without tensor parallelism, together they
            hold one model.
        context: The ranks that hold parts of this rank's sequences, in order; None if layers are
            cut and sequences are not.
        tensor: The ranks that hold slices of this rank's layers, in order.
        model: The ranks that together hold one model, S x T.
        data: The ranks that share each batch with this one, a sample being on one of them.
        copies: The ranks that hold the same part of the model, D x C.
        axes: {"data": D, "pipeline": S}, and "context": C and "tensor": T unless they are 1.
    """

    def __init__(self, team: Team, pipeline: int = 1, tensor: int = 1, context: int = 1) -> None:
        self.team = team
        self.axes = sizes(
            team.size,
            pipeline,
            context=context if context > 1 else None,
            tensor=tensor if tensor > 1 else None,
        )
        self._place = coordinates(self.axes, team.rank)
        self.pipe, self.data = self._along("pipeline"), self._along("data")
        self.parts = [self.pipe, self.data]
        if tensor > 1:
            self.tensor = self._along("tensor")
            self.model = self.tensor if pipeline == 1 else self._along("pipeline", "tensor")
            self.parts += [self.tensor] if pipeline == 1 else [self.tensor, self.model]
        else:
            self.tensor, self.model = team.split(team.rank), self.pipe
            self.parts.append(self.tensor)
        self.copies, self.context = self.data, self.tensor if tensor == 1 else None
        if context > 1:
            self.context = self._along("context")
            self.copies = self._along("data", "context")
            self.parts += [self.context, self.copies]

    def _along(self, *free: str) -> Team:
        """The ranks whose coordinates differ from this rank's on these axes only."""
        fixed = {name: at for name, at in self._place.items() if name not in free}
        return self.team.split(number_of(self.axes, fixed))

    def name_stages(self, stages: Sequence[str], owner: object) -> None:
        """Let errors and reports say what ranks do, while `owner` lives.

        Args:
            stages: By rank of a pipeline, such as "stage 1: output".
            owner: What these stages belong to.
        """
        numbers = {world: rank for rank, world in enumerate(self.team.world_ranks)}
        for team in (*self.parts, self.team):
            roles = {}
            for rank, world in enumerate(team.world_ranks):
                roles[rank] = stages[coordinates(self.axes, numbers[world])["pipeline"]]
                if numbers[world] != rank:
                    roles[rank] += f"; rank {numbers[world]} of all {self.team.size}"
            team.roles = roles
            weakref.finalize(owner, roles.clear)  # the team may go on to other work

    def holding(self, whole: Sequence[Segment], size: int, mine: Sequence[Part] = ()) -> Holding:
        """What a rank of this grid holds of a model with these segments, of `size` elements.

        Args:
            mine: The parts on this rank; () if each rank has all of the model, and parts of
                sequences.
        """
        stages, tensor, parts = (self.axes.get(n, 1) for n in ("pipeline", "tensor", "context"))
        words = [f"tensor groups of {tensor}"] * (tensor > 1)
        if stages > 1 or tensor == parts == 1:
            words.append(f"{stages} stages" if words else f"pipeline of {stages} stages")
        if parts > 1:
            words.append(f"{parts} parts of sequences" if words else f"context groups of {parts}")
        return Holding(
            tuple(whole),
            size,
            tuple(mine),
            self.team,
            self.copies,
            self.data,
            self.model if mine else None,
            self.tensor if tensor > 1 else None,
            tuple(t for t in (self.context, self.pipe, self.tensor) if t is not None),
            words=", ".join([*words, counted(self.axes["data"], "copy", "copies")]),
        )

    def fail(self, error: BaseException) -> None:
        """Tell all ranks of this rank's teams that it failed; they raise PeerError."""
        for team in (*self.parts, self.team):
            team.abort(error)

    def __repr__(self) -> str:
        return f"Grid({self.axes}, rank {self.team.rank})"
