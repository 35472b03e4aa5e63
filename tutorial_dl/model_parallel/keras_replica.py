"""`KerasPartReplica`: this rank's part of a Keras model whose layers or sequences are divided.

    grid = Grid(Team(), tensor=2)                       # D x 2 ranks cut layers
    replica = KerasTensorReplica(model, grid, {"dense_1": "columns", "dense_2": "rows"})
    grid = Grid(Team(), context=2)                      # D x 2 ranks share sequences
    replica = KerasContextReplica(model, grid)
    Trainer(replica, data).fit(5)

All ranks of `grid.tensor` compute the same samples. What is not cut is equal on all of them, and
stays so, because they do the same operations on the same numbers (the strategy checks it).

Each rank of `grid.context` has some positions of each sequence, in all that depends on weights.
With equal parts, the mean over a sample's positions is the mean over ranks of the means over their
positions. So the gradient of a batch is the mean over the D x C ranks of their gradients, which is
what data parallelism computes (strategies/synchronous.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.keras_context import Divided
from tutorial_dl.model_parallel.keras_stage import forget
from tutorial_dl.model_parallel.keras_tensor import Cut
from tutorial_dl.model_parallel.sequences import Sequences
from tutorial_dl.replica.base import Batch, CompiledOptimizer, TrainedBy
from tutorial_dl.replica.keras.graphs import keras, tf
from tutorial_dl.replica.keras.metrics import NEAR, is_empty, unchanged
from tutorial_dl.replica.keras.replica import KerasReplica


class KerasPartReplica(KerasReplica):
    """A KerasReplica of a part of a model, or of sequences. Making it is collective.

    Args:
        model: The whole model, a compiled keras.Model or its KerasReplica, the same on every rank.
            Only this rank's part of its weights is kept; use it through this replica from now on.
        grid: The ranks; `grid.tensor` hold its layers together, and `grid.context` have parts of
            each sequence (keras_context.py).
        rules: How layers are cut; see `keras_tensor.Cut`. None: a table that fits the model.
        sequence: Divide what lies between the layers that are cut along the sequence, axis 1.

    Attributes:
        rules: The table of rules, if layers are cut.
        sums: Counts the sums over ranks of `grid.tensor`, `sums.forward` and `sums.backward`, and
            the bytes that this rank sends, `sums.sent`.
        sequences: This rank's part of sequences, if they are divided; it counts the bytes of rings.

    Raises:
        ValueError: If the model can't be cut so, with the layer's name and what would work.
    """

    sequences: Sequences | None = None  # None: this rank has whole sequences
    calls_python = True  # in graphs, to communicate

    def __init__(
        self,
        model: Any,
        grid: Grid,
        rules: Mapping[str, str] | None = None,
        sequence: bool = False,
    ) -> None:
        parts = grid.axes.get("context", 1) > 1
        if sequence and parts:
            raise ValueError(
                "sequence=True divides whole sequences over the ranks of a tensor group: leave it "
                "out, or use a grid without context"
            )
        self.whole = model if isinstance(model, KerasReplica) else KerasReplica(model)
        self.grid, whole, local = grid, self.whole, self.whole.model
        cut = None
        if grid.axes.get("tensor", 1) > 1 or rules is not None or sequence:
            cut = Cut(local, grid.tensor, rules, sequence)
            self.rules, self.sums, local = cut.rules, cut.sums, cut.local
        if grid.model.size > 1:  # one model, also where layers have no seed of their own
            grid.model.broadcast(whole.parameters)
            self._from_first(grid.model, "state", "random")
        if parts:
            self._from_first(grid.context, "random")
            divided = Divided(local, grid.context)
            self.sequences, local = divided.sequences, divided.local
        weights = whole.parameters.copy()
        super().__init__(local)
        # In the order of the whole model, so that checkpoints do not depend on the cut; generators
        # of layers that are replaced come in another one
        self.state_variables, self.seed_variables = whole.state_variables, whole.seed_variables
        mine, self.partial = [], []
        if cut is not None:
            mine = cut.parts(self.segments, whole.segments)
            # Segments whose gradients are terms of a sum over the tensor axis
            self.partial = cut.partial(self.segments)
        # Sums must reach all of the gradient
        self.traits = replace(self.traits, keeps_apart=not self.partial)
        self.holding = grid.holding(whole.segments, weights.size, mine)
        self.holding.take(lambda first, last: weights[first:last], self.parameters)
        own = {id(v) for v in self.variables}
        self._others = [v for v in whole.model.trainable_weights if id(v) not in own]
        self.graphs.checked = self._check_variables
        self._forget()

    def _why_no_xla(self) -> str:
        return "its ranks communicate while they compute a gradient"

    def _from_first(self, team: Any, *names: str) -> None:
        """Take these vectors of the whole model from the first rank of a team."""
        for name in names if team.size > 1 else ():
            if getattr(self.whole, name).size:
                setattr(self.whole, name, team.broadcast(np.array(getattr(self.whole, name))))

    def _forget(self) -> None:
        forget(self._others)
        self.whole.parameters = self.whole.gradient = np.zeros(0, self.dtype)

    def _check_variables(self, graph: Any) -> None:
        others = {id(v.value): v.path for v in self._others}
        for one in graph.variables:
            if id(one) in others:
                raise ValueError(
                    f"weights '{others[id(one)]}' of a layer that is cut are used by another one: "
                    "use the rule 'replicate' for the first"
                )

    def compute_gradient(self, batch: Batch, *apart: Any, **options: Any) -> tuple[float, int]:
        found = super().compute_gradient(batch, *apart, **options)
        if self.partial and found[1]:
            self.gradient_is_finite &= self.sums.complete(self.gradient, self.partial)
        return found

    def use_team(self, team: Any) -> None:
        super().use_team(self.grid.data)

    def arrays(self, batch: Batch) -> Batch:
        """Whole inputs, and this rank's part of targets and of weights of positions."""
        x, y, w = super().arrays(batch)
        if self.sequences is None:
            return x, y, w
        length = self.sequences.positions.length
        for a in keras.tree.flatten(y):
            if a.shape[1:2] != (length,):
                raise ValueError(
                    f"model '{self.whole.model.name}': targets of shape {a.shape}; context "
                    f"parallelism takes one per position, (samples, {length}, ...)"
                )
        of_positions = not is_empty(w) and w.shape[1:2] == (length,)
        y = keras.tree.map_structure(self.sequences.take, y)
        return x, y, self.sequences.take(w) if of_positions else w

    def check_part(self, batch: Batch) -> None:
        """Raise ValueError if loss or metrics are none of positions, or targets have none."""
        if self.sequences is None:
            return
        if not self.metrics.compiled_of_keras:
            raise ValueError(
                f"model '{self.whole.model.name}': context parallelism takes metrics of Keras's "
                "own, whose sums over positions are known; call model.evaluate after training"
            )
        self.arrays(batch)  # refuses targets without positions
        self._check_loss(super().arrays(batch)[1])

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

    def predict(self, x: Any) -> Any:
        """The outputs at all positions, on all ranks that share the sequences. Collective."""
        found = super().predict(x)
        return found if self.sequences is None else self.sequences.gather(found)

    def own_optimizer(self, given: Any = None) -> CompiledOptimizer | None:
        return self.whole.own_optimizer(given)

    def save(
        self, path: Path | str, trained: TrainedBy | None = None,
        *, parameters: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Save the whole Keras model, as its own replica does.

        Args:
            parameters: The whole model's, where this rank has a part of them.

        Raises:
            ValueError: If they are missing.
        """
        if parameters is None:
            if self._others or not self.parameters.size:
                raise ValueError(
                    f"model '{self.whole.model.name}': this rank has a part of the weights: save "
                    "by Trainer.save, or give parameters"
                )
            self.whole.save(path, trained)
            return
        try:
            variables = self.whole.model.trainable_weights
            for segment, variable in zip(self.holding.whole, variables, strict=True):
                variable.assign(segment.view(parameters))
            self.whole.save(path, trained)
        finally:
            self._forget()
            if self.parameters.size:  # else a pipeline holds them
                self._hold(self.parameters, self.gradient)


KerasTensorReplica = KerasContextReplica = KerasPartReplica
