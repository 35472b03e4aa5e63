"""Pipelines with data parallelism around them: ranks = D x S, each step one update of the model.

    rank (d, s):     g_s   <- gradient of stage s over pipeline d's share of the batch
    ranks (., s):    g_s   <- average over the D pipelines, weighted by samples; w_s <- update

Stages do not share weights, so each stage's update is a synchronous step among its D copies
(synchronous.py). Only clipping needs a number from all stages: the norm of the whole gradient.

Where sequences are divided, too, ranks = D x S x C, and a stage has D x C copies. The average is
over all of them, as in context_parallel.py.
"""

import math

import numpy as np

from numba_kernels.allreduce.elementwise import bounds
from numba_kernels.optimizers import Optimizer
from numba_kernels.optimizers.clipping import clip_factor, squared_length

from ..layout.axes import coordinates
from ..replica.base import Batch, Replica, TrainedBy
from .base import OneModel
from .synchronous import Synchronous, TwoSteps


class Pipelined(OneModel):
    """Trains the parts of a model that the ranks of `grid` hold (model_parallel.PipelinedReplica).

    A checkpoint has the vectors of the whole model, so it can be resumed under another cut, or
    without one.
    """

    saved_as = "Synchronous"

    def __init__(self, grid):
        super().__init__(grid.team)
        self.grid = grid
        self._inner = Synchronous(grid.copies)

    @property
    def name(self) -> str:
        axes = self.grid.axes
        parts = f"{axes['context']} parts of sequences, " if "context" in axes else ""
        return f"pipeline of {axes['pipeline']} stages, {parts}{axes['data']} copies"

    @property
    def copies(self):
        return self.grid.copies

    @property
    def sharers(self):
        return self.grid.data

    @property
    def first(self) -> int:
        return self.replica.first

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if optimizer.undivided:
            raise ValueError(
                f"a pipeline needs an optimizer with a kernel, got {optimizer.in_words}: choose "
                "one with --optimizer"
            )

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        self.check_optimizer(optimizer)
        if hasattr(getattr(replica, "pieces", None), "alike"):
            raise ValueError("its layers are cut, too: use strategies.TensorParallel(grid)")
        self.replica = replica
        self._inner.attach(replica, optimizer)
        self.update = self._inner.update
        if clip_norm is not None:
            self.update = ClippedTogether(self.grid, replica, optimizer, clip_norm)

    def resume(self) -> None:
        self.grid.recover()
        self.update.resume()
        self.grid.agree_on_masks(self.replica)

    def step(self, batch: Batch) -> tuple[float, int]:
        loss, samples = self.gradient(batch)
        self._seen += samples
        loss, samples = self.update(loss, samples)
        return loss, samples // self.grid.axes.get("context", 1)  # each was counted by C ranks

    def slices(self, n: int) -> list[tuple[int, int]]:
        found = []
        parts = self.grid.axes.get("context", 1)
        for rank in range(self.team.size):
            place = coordinates(self.grid.axes, rank)
            low, high = self.replica.ends[place["pipeline"] :][:2]
            among = place["data"] * parts + place.get("context", 0)  # the copies of this stage
            first, last = bounds(high - low, self.copies.size, among)
            found.append((low + first, low + last))
        return found

    def trained_by(self) -> TrainedBy:
        """Without the optimizer's averages, which no rank has for all weights."""
        return TrainedBy(self.optimizer, None, self.state.step)

    def save(self) -> tuple[dict, dict, dict]:
        if len(self.replica.slices) > 1:
            raise ValueError(
                "checkpoints need one stage per rank: use another schedule than interleaved"
            )
        return super().save()


class ClippedTogether(TwoSteps):
    """Average a stage's gradient over its copies, clip by the norm of the whole model, update."""

    def __init__(self, grid, replica, optimizer, clip_norm):
        super().__init__(grid.copies, replica, optimizer, "auto", clip_norm, None)
        self.grid = grid

    def clip(self, gradient: np.ndarray) -> None:
        squares = np.array([squared_length(gradient)])
        if self.grid.pipe.size > 1:
            self.grid.pipe.allreduce(squares)
        gradient *= gradient.dtype.type(clip_factor(math.sqrt(squares[0]), self.clip_norm))
