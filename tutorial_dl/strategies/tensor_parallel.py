"""Tensor parallelism with data parallelism around it, and pipelines: ranks = D x S x T.

    rank (d, s, t):  g_st  <- gradient of its slices over group d's share of the batch
    ranks (., s, t): g_st  <- average over the D copies, weighted by samples; w_st <- update

Sequences may be divided, too, D x S x C x T; then the average is over D x C copies, as in
context_parallel.py.

What is not cut is equal on the T ranks of a group, and they make the same update of it. Only
clipping needs a number from all parts: the norm of the whole model's gradient.
"""

import math

import numpy as np

from numba_kernels.optimizers import Optimizer
from numba_kernels.optimizers.clipping import clip_factor

from ..replica.base import Batch, Replica, Segment, TrainedBy
from ..replica.consistency import check_same_weights
from .base import OneModel
from .synchronous import Synchronous, TwoSteps


class TensorParallel(OneModel):
    """Trains the parts of a model that the ranks of `grid` hold (model_parallel.Grid).

    Its replica is a KerasTensorReplica, or a PipelinedReplica of one. A checkpoint has the vectors
    of the whole model, so it can be resumed under another cut, or without one.
    """

    saved_as = "Synchronous"

    def __init__(self, grid):
        super().__init__(grid.team)
        self.grid = grid
        self._inner = Synchronous(grid.copies)

    @property
    def name(self) -> str:
        axes = self.grid.axes
        stages = f"{axes['pipeline']} stages, " if axes["pipeline"] > 1 else ""
        parts = f"{axes['context']} parts of sequences, " if "context" in axes else ""
        return f"tensor groups of {self.grid.tensor.size}, {stages}{parts}{axes['data']} copies"

    @property
    def copies(self):
        return self.grid.copies

    @property
    def sharers(self):
        return self.grid.data

    # Of this rank's samples; the inner strategy counts them
    _seen = property(
        lambda self: self._inner._seen, lambda self, n: setattr(self._inner, "_seen", n)
    )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if optimizer.undivided:
            raise ValueError(
                f"tensor parallelism needs an optimizer with a kernel, got {optimizer.in_words}: "
                "choose one with --optimizer"
            )
        if optimizer.layered:
            raise ValueError(
                f"{optimizer.in_words} needs norms of whole layers, of which each rank has a part: "
                "use a rule such as sgd or adam"
            )

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        self.check_optimizer(optimizer)
        if not hasattr(getattr(replica, "pieces", None), "alike"):
            raise ValueError(
                "TensorParallel trains a KerasTensorReplica, or a PipelinedReplica of one, got a "
                f"{type(replica).__name__}"
            )
        self.replica, inner = replica, self._inner
        inner.attach(replica, optimizer)
        if clip_norm is not None:
            inner.update_by(Clipped(self.grid, replica, optimizer, clip_norm))
        self.update = inner.update
        self._alike = replica.pieces.alike(replica.parameters.size)

    def resume(self) -> None:
        """After a failure: make all ranks of a tensor group agree on what is not cut. Collective.

        Slices of it may differ by one update, as stages of a pipeline may.
        """
        self.grid.recover()
        self.update.resume()
        if self.loss_scale is not None and self.team.size > 1:
            self.loss_scale.values = self.team.broadcast(np.array(self.loss_scale.values))
        self._inner.share_state()
        team, state, mine = self.grid.tensor, self.state, self.update.mine
        self.grid.agree_on_masks(self.replica)
        if team.size > 1:
            if self.replica.state.size:
                self.replica.state = team.broadcast(np.array(self.replica.state))
            for vector, alike in (
                (self.replica.parameters, self._alike),
                *((row, self._alike[mine]) for row in state.slots),
            ):
                vector[alike] = team.broadcast(vector[alike])
            state.step = int(team.broadcast(np.array([state.step]))[0])
            rate = team.broadcast(np.array([self.optimizer.learning_rate], np.float64))[0]
            self.optimizer = self.optimizer.at_rate(float(rate))

    def step(self, batch: Batch) -> tuple[float, int]:
        inner = self._inner
        inner.loss_scale = self.loss_scale
        loss, samples = inner.begin(batch)
        if self.loss_scale is not None:
            self._finite = inner._finite
        # One rank's overflow skips the step on all of them, so all ranks decide together.
        if (skipped := self.skipped(loss, samples)) is not None:
            return skipped[0], skipped[1] * self.grid.data.size // self.team.size
        loss, samples = self.constrained(self.update(loss, samples))
        return loss, samples // self.grid.axes.get("context", 1)  # each was counted by C ranks

    def settle(self) -> None:
        """Raise DriftError unless the ranks of a tensor group agree on what is not cut."""
        alike = [s for s, piece in self.replica.pieces.own if piece.alike]
        check_same_weights(self.grid.tensor, Alike(self.replica.parameters, alike))

    # Checkpoints

    def slices(self, n: int) -> list[tuple[int, int]]:
        return super().slices(self.replica.whole_size)

    def to_checkpoint(self, vector: np.ndarray) -> np.ndarray:
        return self.replica.pieces.joined(vector, *self.team.slice_of(self.replica.whole_size))

    def from_checkpoint(self, saved, name: str, n: int) -> np.ndarray:
        found = np.zeros(n, self.replica.parameters.dtype)
        self.replica.pieces.take(lambda *part: saved.vector(name, *part), found)
        return found

    def _rows(self) -> list[np.ndarray]:
        """The optimizer's slots for all of this rank's weights. Collective over the copies."""
        n, mine, slots = self.replica.parameters.size, self.update.mine, self.state.slots
        rows = np.zeros((len(slots), n), slots.dtype)
        rows[:, mine] = slots
        if mine != slice(0, n):
            for row in rows:
                self.copies.allreduce(row)  # of slices that do not overlap
        return list(rows)

    def trained_by(self) -> TrainedBy:
        pieces = self.replica.pieces
        size = self.replica.whole_size if self.team.rank == 0 else 0  # the others only take part
        slots = [pieces.joined(row, 0, size) for row in self._rows()]
        slots = np.array(slots).reshape(len(slots), size)
        return TrainedBy(self.optimizer, slots, self.state.step)

    def save(self) -> tuple[dict, dict, dict]:
        first, last = self.team.slice_of(self.replica.whole_size)
        slots = [self.to_checkpoint(row) for row in self._rows()]
        vectors = {
            "parameters": self.to_checkpoint(self.replica.parameters),
            "slots": np.array(slots, self.state.slots.dtype).reshape(len(slots), last - first),
        }
        own = {"state": self.replica.state, "seen": np.array([self._seen])}
        values = {
            "updates": self.state.step,
            "rate": self.optimizer.learning_rate,
            "axes": dict(self.grid.axes),
        }
        if self.loss_scale is not None:
            values["loss_scale"] = self.loss_scale.values
        return values, vectors, own

    def restore(self, saved) -> None:
        replica, update = self.replica, self.update
        n, slots = replica.parameters.size, update.state.slots
        replica.parameters[:] = self.from_checkpoint(saved, "parameters", n)
        rows = np.zeros((len(slots), n), slots.dtype)
        replica.pieces.take(lambda *part: saved.vector("slots", *part), rows)
        slots[:] = rows[:, update.mine]
        values = saved.values["strategy"]
        update.state.step = values["updates"]
        self.restore_numbers(values)
        seen = [int(saved.own("seen", rank)[0]) for rank in range(saved.ranks)]
        if values.get("axes") == self.grid.axes:
            state, self._seen = saved.own("state", self.team.rank), seen[self.team.rank]
        else:  # the average of the copies, the same on all ranks
            states = [saved.own("state", rank).astype(np.float64) for rank in range(saved.ranks)]
            weights = seen if sum(seen) else [1] * len(seen)
            state, self._seen = np.average(states, axis=0, weights=weights), 0
        if replica.state.size:
            replica.state = state.astype(replica.state.dtype)


class Alike:
    """What `check_same_weights` compares: the segments that are not cut."""

    def __init__(self, parameters: np.ndarray, segments: list[Segment]) -> None:
        self.parameters, self.segments = parameters, segments


class Clipped(TwoSteps):
    """Average a part's gradient over its copies, clip by the norm of the whole model, update."""

    def __init__(self, grid, replica, optimizer, clip_norm):
        super().__init__(grid.copies, replica, optimizer, "auto", clip_norm, None)
        self.grid = grid

    def clip(self, gradient: np.ndarray) -> None:
        squares = np.array([self.replica.pieces.squares(gradient)], np.float64)
        if self.grid.model.size > 1:
            self.grid.model.allreduce(squares)
        gradient *= gradient.dtype.type(clip_factor(math.sqrt(squares[0]), self.clip_norm))
