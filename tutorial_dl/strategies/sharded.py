"""Synchronous data parallelism in which ranks divide gradients, and weights (ZeRO stages 2 and 3).

    rank i:      g_i <- gradient of its share of the batch, layer by layer; as soon as that of a
                 layer is complete: slice r of sum_i g_i goes to rank r, and the rest is dropped
    rank i:      w[its slices] <- update;  stage 2: all ranks gather the new weights;  stage 3:
                 they gather a layer's weights when they compute it

The replica does the first, because it needs to know layers (model_parallel/sharded.py). The updates
are those of `Synchronous`, and so are checkpoints.
"""

import numpy as np

from numba_kernels.optimizers import Optimizer
from numba_kernels.spans import span

from ..replica.base import Batch, Replica, TrainedBy
from .base import OneModel


class Sharded(OneModel):
    """Trains a model_parallel.ShardedReplica on the ranks of `team`.

    A checkpoint has the vectors of the whole model, so it can be resumed under another stage, or on
    another number of ranks.
    """

    saved_as = "Synchronous"
    takes_parts = True

    @property
    def name(self) -> str:
        return f"synchronous, shard {self.replica.stage}" if hasattr(self, "replica") else "sharded"

    def check_replica(self, replica: Replica) -> None:
        if not replica.stage:
            raise ValueError(
                f"Sharded trains a model_parallel.ShardedReplica, got a {type(replica).__name__}"
            )
        if replica.team is not self.team:
            raise ValueError("the replica and strategies.Sharded must have the same team")

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if optimizer.undivided:
            raise ValueError(
                f"shard 2 and 3 need an optimizer with a kernel, got {optimizer.in_words}: choose "
                "one with --optimizer, or use shard 1"
            )

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        self.check_optimizer(optimizer)
        self.check_replica(replica)
        self.replica, self.update = replica, replica.update_by(optimizer, clip_norm)
        self.share_state()

    def resume(self) -> None:
        """After a failure: make all ranks agree. Collective.

        Weights of stage 3 exist once, so no rank has those of another one.
        """
        self.update.agree()
        self.share_state()

    def begin(self, batch: Batch) -> tuple[float, int]:
        with span("gradient"):
            loss, samples = self.gradient(batch)
        self._seen += samples
        return loss, samples

    def set_rate(self, rate: float, correct_momentum: bool = True) -> None:
        before = self.optimizer
        if rate != before.learning_rate:
            self.optimizer = before.at_rate(rate)
            for part in self.update.parts if correct_momentum else ():
                before.at_rate(rate, part.state)  # scales its velocity

    def trained_by(self) -> TrainedBy:
        last = self.update.n if self.team.rank == 0 else 0  # the others only take part
        return TrainedBy(self.optimizer, self.update.joined_slots(0, last), self.state.step)

    # Checkpoints

    def slices(self, n: int) -> list[tuple[int, int]]:
        return super().slices(self.replica.whole_size)

    def to_checkpoint(self, vector: np.ndarray) -> np.ndarray:
        first, last = self.team.slice_of(self.replica.whole_size)
        if self.replica.stage < 3:
            return vector[first:last]
        return self.update.joined(self._of_parts(vector), False, first, last)

    def _of_parts(self, vector: np.ndarray) -> list[np.ndarray]:
        """The slices of each part in a vector like the replica's in stage 3."""
        ends = np.cumsum([part.weights.size for part in self.update.parts])
        return np.split(vector, ends[:-1])

    def from_checkpoint(self, saved, name: str, n: int) -> np.ndarray:
        found = np.zeros(n, self.replica.dtype)
        if self.replica.stage < 3:
            found[:] = saved.vector(name, 0, n)
            return found
        for part, own in zip(self.update.parts, self._of_parts(found), strict=True):
            at = part.offset
            own[:] = saved.vector(name, at + part.keeps.start, at + part.keeps.stop)
        return found

    def save(self) -> tuple[dict, dict, dict]:
        stretch = self.team.slice_of(self.replica.whole_size)
        vectors = {
            "parameters": self.to_checkpoint(self.replica.parameters),
            "slots": self.update.joined_slots(*stretch),
        }
        own = {"state": self.replica.state, "seen": np.array([self._seen])}
        return {"updates": self.state.step, "rate": self.optimizer.learning_rate}, vectors, own

    def restore(self, saved) -> None:
        values = saved.values["strategy"]
        self.update.take(
            lambda *stretch: saved.vector("parameters", *stretch),
            lambda *stretch: saved.vector("slots", *stretch),
            values["updates"],
        )
        self.restore_numbers(values)
        self.restore_state(saved)
