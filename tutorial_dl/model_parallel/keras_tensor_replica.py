"""`KerasTensorReplica`: this rank's part of a Keras model that is cut by columns, rows and heads.

    grid = Grid(Team(), tensor=2)                       # D x 2 ranks
    replica = KerasTensorReplica(model, grid, {"dense_1": "columns", "dense_2": "rows"})
    Trainer(replica, data).fit(5)

All ranks of `grid.tensor` compute the same samples. What is not cut is equal on all of them, and
stays so, because they do the same operations on the same numbers (the strategy checks it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.keras_context_replica import OnParts
from tutorial_dl.model_parallel.keras_tensor import Cut
from tutorial_dl.model_parallel.keras_tensor_sequence import CutInParts
from tutorial_dl.replica.base import Batch, CompiledOptimizer, TrainedBy
from tutorial_dl.replica.holding import Part
from tutorial_dl.replica.keras.replica import KerasReplica
from tutorial_dl.replica.keras.weights import alias


class KerasTensorReplica(OnParts):
    """A KerasReplica of a part of a model. Making it is collective.

    Args:
        model: The whole model, a compiled keras.Model or its KerasReplica, the same on every rank.
            Only this rank's part of its weights is kept; use it through this replica from now on.
        grid: The ranks; `grid.tensor` hold its layers together, and `grid.context`, if they are
            several, have parts of each sequence (keras_context.py).
        rules: How layers are cut; see `keras_tensor.Cut`. None: a table that fits the model.
        sequence: Divide what lies between the layers that are cut along the sequence, axis 1; see
            `keras_tensor_sequence.CutInParts`.

    Attributes:
        rules: The table of rules.
        sums: Counts the sums over ranks, `sums.forward` and `sums.backward`, and the bytes that
            this rank sends, `sums.sent`.

    Raises:
        ValueError: If the model can't be cut so, with the layer's name and what would work.
    """

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
        self.grid = grid
        cut = (CutInParts if sequence else Cut)(self.whole.model, grid.tensor, rules)
        self.rules, self.sums = cut.rules, cut.sums
        if grid.model.size > 1:  # one model, also where layers have no seed of their own
            grid.model.broadcast(self.whole.parameters)
            for name in ("state", "random"):
                if getattr(self.whole, name).size:
                    value = np.array(getattr(self.whole, name))
                    setattr(self.whole, name, grid.model.broadcast(value))
        whole = self.whole.parameters.copy()
        super().__init__(self.divided(cut.local) if parts else cut.local)
        # In the order of the whole model, so that checkpoints do not depend on the cut
        self.state_variables = self.whole.state_variables
        self.seed_variables = self.whole.seed_variables
        pairs = list(zip(self.segments, cut.pieces, strict=True))
        there = self.whole.segments
        mine = [Part(here, there[one.whole], one.index, one.alike) for here, one in pairs]
        self.holding = grid.holding(there, whole.size, mine)
        # Segments whose gradients are terms of a sum over the tensor axis
        self.partial = [here for here, one in pairs if one.partial]
        self.reductions = cut.sums.reductions
        # Sums must reach all of the gradient
        self.traits = replace(self.traits, keeps_apart=not self.partial)
        self.holding.take(lambda first, last: whole[first:last], self.parameters)
        mine = {id(v) for v in self.variables}
        self._others = [v for v in self.whole.model.trainable_weights if id(v) not in mine]
        self.graphs.checked = self._check_variables
        self._forget()

    def _forget(self) -> None:
        """Weights of other ranks get memory that is never written, so takes no room."""
        most = max((int(np.prod(v.shape)) for v in self._others), default=0)
        nothing = np.zeros(most + 64, self.dtype)
        start = -nothing.ctypes.data % 64 // self.dtype.itemsize
        for variable in self._others:
            size = int(np.prod(variable.shape))
            alias(variable, nothing[start : start + size].reshape(variable.shape))
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
            self.gradient_is_finite &= self.reductions.complete(self.gradient, self.partial)
        return found

    def own_optimizer(self, given: Any = None) -> CompiledOptimizer | None:
        return self.whole.own_optimizer(given)

    def save(
        self, path: Path | str, trained: TrainedBy | None = None, *, parameters: np.ndarray
    ) -> None:
        """Save the whole Keras model with these parameters, as its own replica does."""
        self.save_whole(path, parameters, trained)

    def save_whole(self, path: Path | str, whole: np.ndarray, trained: TrainedBy | None) -> None:
        """Save the whole model with these weights."""
        variables = self.whole.model.trainable_weights
        try:
            for segment, variable in zip(self.holding.whole, variables, strict=True):
                variable.assign(segment.of(whole))
            self.whole.save(path, trained)
        finally:
            self._forget()
            if self.parameters.size:  # else a pipeline holds them
                self._hold(self.parameters, self.gradient)
