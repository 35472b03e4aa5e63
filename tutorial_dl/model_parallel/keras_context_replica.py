"""`KerasContextReplica`: a Keras model whose sequences lie on several ranks.

    grid = Grid(Team(), context=2)                       # D x 2 ranks
    replica = KerasContextReplica(model, grid)
    Trainer(replica, data).fit(5)

It is a KerasReplica of the model of this rank's part (keras_context.py), with the weights, names
and vectors of the whole model; see context_replica.py for what ranks compute.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.keras_context import Divided
from tutorial_dl.model_parallel.sequences import Sequences
from tutorial_dl.replica.base import Batch, Brought, TrainedBy
from tutorial_dl.replica.keras_metrics import NEAR, is_empty, unchanged
from tutorial_dl.replica.keras_steps import keras, tf
from tutorial_dl.replica.keras_tensorflow import KerasReplica


class OnParts(KerasReplica):
    """A KerasReplica whose ranks `grid.context` share each sequence, and `grid.data` each batch.

    Before its own constructor, a subclass sets `whole`, the replica of the whole model, and `grid`,
    and calls `divided`.
    """

    sequences: Sequences | None = None  # None: this rank has whole sequences
    refuses_xla = "its ranks communicate while they compute a gradient"
    _calls_python = True  # in graphs, to do so

    def divided(self, model: Any) -> Any:
        """The model of this rank's part of sequences, from that of whole ones. Collective."""
        seeds, team = self.whole.random, self.grid.context
        if seeds.size and team.size > 1:  # layers may have no seed of their own
            self.whole.random = team.broadcast(np.array(seeds))
        found = Divided(model, team)
        self.sequences, self._length = found.sequences, found.length
        return found.local

    def use_team(self, team: Any) -> None:
        super().use_team(self.grid.data)

    def _arrays(self, batch: Batch) -> Batch:
        """Whole inputs, and this rank's part of targets and of weights of positions."""
        x, y, w = super()._arrays(batch)
        if self.sequences is None:
            return x, y, w
        for a in keras.tree.flatten(y):
            if a.shape[1:2] != (self._length,):
                raise ValueError(
                    f"model '{self.whole.model.name}': targets of shape {a.shape}; context "
                    f"parallelism takes one per position, (samples, {self._length}, ...)"
                )
        of_positions = not is_empty(w) and w.shape[1:2] == (self._length,)
        y = keras.tree.map_structure(self.sequences.take, y)
        return x, y, self.sequences.take(w) if of_positions else w

    def part(self, batch: Batch) -> Batch:
        """Whole inputs, of which the model takes its part, and this rank's part of targets."""
        return self._arrays(batch)[:2]

    def check_part(self, batch: Batch) -> None:
        """Raise ValueError if loss or metrics are none of positions, or targets have none."""
        if self.sequences is None:
            return
        if not self._metrics.compiled_of_keras:
            raise ValueError(
                f"model '{self.whole.model.name}': context parallelism takes metrics of Keras's "
                "own, whose sums over positions are known; call model.evaluate after training"
            )
        self._arrays(batch)  # refuses targets without positions
        self._check_loss(super()._arrays(batch)[1])

    def try_out(self, batch: Batch, shared: bool, by_team: bool = True) -> None:
        self.check_part(batch)
        super().try_out(batch, shared, by_team)

    def _check_loss(self, y: Any) -> None:
        """Raise ValueError unless the loss is a mean over positions, by some random outputs."""
        losses = keras.tree.flatten(self.model.loss)
        if any(getattr(one, "ignore_class", None) is not None for one in losses):
            raise ValueError(
                f"model '{self.whole.model.name}': a loss with ignore_class is a mean over some "
                "positions only, so ranks can't share a sequence: leave it out"
            )
        if len(keras.tree.flatten(y)) != 1 or not len(keras.tree.flatten(y)[0]):
            return
        shape = self.whole.model.outputs[0].shape
        (target,) = keras.tree.flatten(y)
        random = np.random.default_rng(0).random((len(target), *shape[1:])) + 0.1
        outputs = (random / random.sum(-1, keepdims=True)).astype(self.dtype)
        places, ranks = self.sequences.positions, self.grid.context.size

        def loss(part) -> float:
            with unchanged(self.model):
                y, z = (tf.constant(part(a)) for a in (target, outputs))
                return float(self.model.compute_loss(None, y, z, None))

        parts = [loss(lambda a, r=r: places.take(a, r, 1)) for r in range(ranks)]
        if not np.isclose(np.mean(parts), loss(lambda a: a), rtol=NEAR, atol=NEAR):
            raise ValueError(
                f"model '{self.whole.model.name}': its loss is not a mean over positions, so ranks "
                "can't share a sequence: return one loss per position, or their mean"
            )

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """As KerasReplica, over all positions, on all ranks that share the sequences."""
        found = super().measure(batches)
        return found if self.sequences is None else self.sequences.summed(found)

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        sums = self.measure(batches)
        return {**self.metrics_of(sums), "samples": int(sums["samples"])}

    def predict(self, x: Any) -> Any:
        """The outputs at all positions, on all ranks that share the sequences. Collective."""
        found = super().predict(x)
        return found if self.sequences is None else self.sequences.gather(found)


class KerasContextReplica(OnParts):
    """A KerasReplica of a model on parts of sequences. Making it is collective.

    Args:
        model: The whole model, a compiled keras.Model or its KerasReplica, the same on every rank.
        grid: The ranks; those of `grid.context` share each sequence.

    Attributes:
        sequences: This rank's part of them; it counts the bytes that rings send.

    Raises:
        ValueError: If the model can't be computed so, with the layer's name and what would work.
    """

    def __init__(self, model: Any, grid: Grid) -> None:
        self.whole = model if isinstance(model, KerasReplica) else KerasReplica(model)
        self.grid = grid
        super().__init__(self.divided(self.whole.model))
        # Generators of layers that are replaced come in another order; variables, in this one.
        self._state, self._seeds = self.whole._state, self.whole._seeds
        self.holding = grid.holding(self.segments, self.parameters.size)
        self.whole.parameters = self.whole.gradient = np.zeros(0, self.dtype)  # it is not used

    def own_optimizer(self, given: Any = None) -> Brought | None:
        return self.whole.own_optimizer(given)

    def save(self, path: Path | str, trained: TrainedBy | None = None) -> None:
        """Save the whole Keras model, as its own replica does."""
        self.whole.save(path, trained)

    def save_whole(self, path: Path | str, whole: np.ndarray, trained: TrainedBy | None) -> None:
        """Save it with these weights, which its variables then have, in memory of their own."""
        variables = self.whole.model.trainable_weights
        for segment, variable in zip(self.whole.segments, variables, strict=True):
            variable.assign(segment.of(whole))
        self.save(path, trained)
