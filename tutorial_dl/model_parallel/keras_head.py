"""`KerasHead`: loss and metrics of a Keras model whose layers are computed group by group.

Weights are dropped while they are not used (keras_sharded.py), so TensorFlow never computes the
whole model at once: each group of layers is a graph of its own, which holds its activations until
the backward pass. That it also refers to weights does not matter: they lie at the same addresses
again when the gradient is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tutorial_dl.model_parallel.keras_stages import KerasParts
from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.keras.graphs import as_graph, keras, tf
from tutorial_dl.replica.keras.metrics import as_fit
from tutorial_dl.replica.keras.shape_errors import wrong_label
from tutorial_dl.replica.keras.step import NO_NUMBERS


class KerasHead:
    """Inputs, loss and metrics of a KerasReplica, from what its last layers give."""

    def __init__(self, parts: KerasParts) -> None:
        self.inner, self.model = parts.replica, parts.model
        self._graph_of_loss = as_graph(self._loss_by_outputs, reduce_retracing=True)
        self._graph_of_test = as_graph(self._tested_outputs, reduce_retracing=True)
        given = [id(t) for t in parts.graph.crossing(len(parts.names))]
        self.places = [given.index(id(t)) for t in parts.graph.outputs]

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
        return self._structured([np.asarray(a) for a in self.in_order(y)])

    def loss(self, y: list, batch: Batch) -> tuple[float, list[np.ndarray]]:
        """Mean loss, and its gradient by what the last layers give; counts it in `trained`."""
        found = self._run(self._graph_of_loss, y, batch, self.inner.step.counts)
        loss, numbers, gradients = found
        if len(numbers):
            self.inner.training.add(numbers, len(y[0]))
        found = [np.zeros_like(a) for a in y]
        for i, gradient in zip(self.places, gradients, strict=True):
            found[i] = found[i] + np.asarray(tf.convert_to_tensor(gradient))
        return float(loss), [g for g in found if g.dtype.kind == "f"]

    def measure(self, pairs: Iterable[tuple[Batch, list]]) -> dict[str, Any]:
        """As `Replica.measure`, for batches with what the last layers give."""
        self.inner.testing.sums, samples = {}, 0
        for batch, y in pairs:
            self.inner.testing.add(self._run(self._graph_of_test, y, batch), len(y[0]))
            samples += len(y[0])
        return self.inner.testing.sums if samples else {"samples": 0}

    def _run(self, graph: Any, y: list, batch: Batch, *more: Any) -> Any:
        """A graph of the model's outputs, targets and weights of samples."""
        targets = self._ready(batch)
        try:
            return graph([tf.constant(a) for a in self.in_order(y)], *targets, *more)
        except tf.errors.OpError as error:
            raise wrong_label(self.model, self.inner.arrays(batch)[1]) or error from None

    def _structured(self, z: list) -> Any:
        """The outputs in the model's own structure."""
        if len(z) == 1 and not hasattr(self.model, "_outputs_struct"):  # a sequential model
            return z[0]
        return keras.tree.pack_sequence_as(self.model._outputs_struct, z)

    def _ready(self, batch: Batch) -> tuple[Any, Any]:
        """Targets and weights of samples as tensors; builds metrics and losses before."""
        arrays = self.inner.arrays(batch)
        self.inner.build(arrays)  # what it computes is of no use, as weights may not be there
        if self.model.losses:
            raise ValueError(
                f"model '{self.model.name}' adds losses (add_loss), which need the whole model: "
                "use shard 1"
            )
        return keras.tree.map_structure(tf.constant, arrays[1:])

    def _loss_by_outputs(self, z: list, y: Any, w: Any, counts: bool) -> tuple[Any, Any, list]:
        _, y, w = as_fit((), y, w)
        if counts:
            self.inner.training.reset()
        with tf.GradientTape() as tape:
            tape.watch(z)
            outputs = self._structured(z)
            loss = self.model.compute_loss(
                x=None, y=y, y_pred=outputs, sample_weight=w, training=True
            )
        numbers = self.inner.training.of_batch(None, y, outputs, w) if counts else NO_NUMBERS
        zero = tf.UnconnectedGradients.ZERO
        return loss, numbers, tape.gradient(loss, z, unconnected_gradients=zero)

    def _tested_outputs(self, z: list, y: Any, w: Any) -> tf.Tensor:
        """The metrics' numbers of a batch, as Keras's test_step counts it."""
        self.model.reset_metrics()
        _, y, w = as_fit((), y, w)
        outputs = self._structured(z)
        loss = self.model.compute_loss(x=None, y=y, y_pred=outputs, sample_weight=w, training=False)
        self.model._loss_tracker.update_state(loss, sample_weight=tf.shape(z[0])[0])
        self.model.compute_metrics(None, y, outputs, sample_weight=w)
        return self.inner.testing.held()
