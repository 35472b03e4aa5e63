"""`LayeredTensorReplica`: this rank's part of a numpy model whose layers are cut, to be trained.

    grid = Grid(Team(), tensor=2)                        # D x 2 ranks
    replica = LayeredTensorReplica(TransformerReplica(), grid, sequence=True)
    Trainer(replica, data).fit(5)

What ranks compute: tensor.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.tensor import TensorReplica
from tutorial_dl.replica.base import Batch, Segment, plain, save_arrays
from tutorial_dl.replica.holding import Part
from tutorial_dl.replica.layered import LayeredReplica
from tutorial_dl.replica.layers import Activation, Chain, Conv2D, Dense, Layer
from tutorial_dl.replica.transformer import Attention


def rules_of(layers: Iterable[Layer]) -> dict[str, str]:
    """A table of rules that fits: attention by heads, and two dense or two convolutional layers.

    Only activations lie between the two, the first by columns and the second by rows.
    """
    rules: dict[str, str] = {}
    first: Layer | None = None
    for layer in layers:
        if isinstance(layer, Activation):
            continue
        if isinstance(layer, Chain):
            rules |= rules_of(layer.layers)
        elif isinstance(layer, Attention):
            rules[layer.name] = "heads"
        elif isinstance(layer, Dense | Conv2D) and type(layer) is type(first):
            rules |= {first.name: "columns", layer.name: "rows"}
            layer = None
        first = layer
    return rules


class LayeredTensorReplica(TensorReplica):
    """A TensorReplica with the weights of a model, on the ranks of a grid. Making it is collective.

    Args:
        whole: The model of one rank, the same on every rank, such as a TransformerReplica.
        grid: The ranks; `grid.tensor` hold its layers together.
        rules: How layers are cut; see `tensor.split`. None: `rules_of`.
        sequence: Divide what lies between pairs along the sequence.

    Raises:
        ValueError: If the model can't be cut so, with the layer's name and what would work.
    """

    def __init__(
        self,
        whole: LayeredReplica,
        grid: Grid,
        rules: Mapping[str, str] | None = None,
        sequence: bool = False,
    ) -> None:
        for axis in ("pipeline", "context"):
            if grid.axes.get(axis, 1) > 1:
                raise ValueError(
                    f"layers of numpy are not cut together with --{axis}: leave --{axis} out, or "
                    "use a Keras model"
                )
        rules = rules_of(whole.layers) if rules is None else rules
        if not rules:
            raise ValueError(
                "the model has no layers to cut: neither Attention, nor two Dense or two Conv2D in "
                "a row"
            )
        self.grid, self.traits = grid, replace(self.traits, tries_out=True)
        super().__init__(whole.layers, grid.tensor, rules, sequence, whole.loss, dtype=whole.dtype)
        if whole.random is not None:
            self.random = grid.tensor.broadcast(whole.random.copy())
        there = {one.name: one for one in whole.segments}
        mine = [self._part(one, there[one.name]) for one in self.segments]
        self.holding = grid.holding(whole.segments, whole.parameters.size, mine)
        self.holding.take(lambda first, last: whole.parameters[first:last], self.parameters)

    def _part(self, here: Segment, there: Segment) -> Part:
        axis = self.axes[here.name]
        if axis is None:
            return Part(here, there, alike=True)
        index, share = [slice(None)] * len(here.shape), here.shape[axis]
        index[axis] = slice(self.team.rank * share, (self.team.rank + 1) * share)
        return Part(here, there, tuple(index))

    def try_out(self, batch: Batch, shared: bool, by_team: bool = True) -> None:
        """Compute samples, before training: layers refuse those without positions. Collective."""
        self.predict(plain(batch)[0])

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        seeds = self.random
        try:
            return super().compute_gradient(batch)
        except BaseException:
            self.random = seeds  # a step that failed is made again alike
            raise

    def save(self, path: Path | str, *, parameters: np.ndarray) -> None:
        """Write the whole model's arrays, with these parameters, as its own replica does."""
        save_arrays(self, path, self.holding.whole, parameters)
