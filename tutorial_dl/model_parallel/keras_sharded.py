"""`KerasHead`: loss and metrics of a Keras model whose layers are computed group by group.

Weights are dropped while they are not used (sharded.py), so TensorFlow never computes the whole
model at once: each group of layers is a graph of its own, with a tape that holds its activations
until the backward pass. That a tape also refers to weights does not matter: they lie at the same
addresses again when the gradient is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tutorial_dl.model_parallel.keras_stages import KerasParts
from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.collective_layers import CollectiveLayer
from tutorial_dl.replica.keras_steps import keras
from tutorial_dl.replica.keras_tensorflow import KerasReplica
from tutorial_dl.replica.layers import At


class KerasHead:
    """Inputs, loss and metrics of a KerasReplica, from what its last layers give."""

    def __init__(self, parts: KerasParts) -> None:
        self.inner, self.model = parts.replica, parts.model
        given = [id(t) for t in parts.graph.crossing(len(parts.names))]
        self.places = [given.index(id(t)) for t in parts.graph.outputs]

    def samples(self, batch: Batch) -> int:
        return len(keras.tree.flatten(batch[0])[0])

    def at(self, training: bool) -> At:
        return At(training=training)

    def inputs(self, batch: Batch) -> list[np.ndarray]:
        """The arrays in the order of the model's inputs, a column where it has one feature."""
        found = []
        for array, given in zip(keras.tree.flatten(batch[0]), self.model.inputs, strict=True):
            array = np.asarray(array)
            if array.ndim == len(given.shape) - 1 and given.shape[-1] == 1:
                array = array[..., None]
            found.append(array)
        return found

    def in_order(self, y: list) -> list:
        """The model's outputs, among what the last layers give."""
        return [y[i] for i in self.places]

    def outputs(self, y: list) -> Any:
        return self.inner.structured([np.asarray(a) for a in self.in_order(y)])

    def loss(self, y: list, batch: Batch) -> tuple[float, list[np.ndarray]]:
        """Mean loss, and its gradient by what the last layers give."""
        loss, gradients = self.inner.loss_of_outputs(self.in_order(y), batch)
        found = [np.zeros_like(a) for a in y]
        for i, gradient in zip(self.places, gradients, strict=True):
            found[i] = found[i] + gradient
        return loss, [g for g in found if g.dtype.kind == "f"]

    def measure(self, pairs: Iterable[tuple[Batch, list]]) -> dict[str, Any]:
        """As `Replica.measure`, for batches with what the last layers give."""
        return self.inner.measure_outputs((batch, self.in_order(y)) for batch, y in pairs)

    def metrics_of(self, sums: dict[str, Any]) -> dict[str, float]:
        return self.inner.metrics_of(sums)

    def try_out(self, batch: Batch, shared: bool) -> None:
        self.inner.check_batch(batch, shared)


def check(inner: KerasReplica, stage: int) -> None:
    """Raise ValueError for losses, metrics and layers that need the whole model, or all ranks."""
    name, kind = f"model '{inner.model.name}'", type(inner.model)
    if any(isinstance(layer, CollectiveLayer) for layer in inner.model._flatten_layers()):
        raise ValueError(
            f"shard {stage} can't compute layers that need all ranks, such as synchronised batch "
            "normalisation: use shard 1"
        )
    if inner.changes_parameters:
        raise ValueError(
            f"shard {stage} can't compute SpectralNormalization, which changes whole weights: use "
            "shard 1"
        )
    own = [m for m in ("test_step", "compute_loss", "compute_metrics") if m in overridden(kind)]
    if own:
        raise ValueError(
            f"shard {stage} can't compute {name}: it has its own {own[0]}, which may need the "
            "whole model; use shard 1"
        )
    if inner.has_numbers_of_its_own:
        raise ValueError(
            f"shard {stage} can't compute {name}: it has losses or metrics of your own, which are "
            "tried out on the whole model; use Keras's own, or shard 1"
        )
    if inner.model.run_eagerly:
        raise ValueError(f"shard {stage} computes graphs: compile {name} without run_eagerly")


def overridden(kind: type) -> set[str]:
    """The methods of keras.Model that a class of the user's replaces."""
    own = [one for one in kind.__mro__ if not one.__module__.startswith("keras.")]
    return {name for one in own if one is not object for name in vars(one)}
