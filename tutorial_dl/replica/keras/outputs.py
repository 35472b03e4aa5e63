"""`Outputs`: loss and metrics of a Keras model from outputs that were computed elsewhere.

Where ranks divide a model's weights (model_parallel/sharded.py), TensorFlow never computes the
whole model at once; what follows on its outputs is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.keras.graphs import as_graph, keras, tf
from tutorial_dl.replica.keras.metrics import as_fit
from tutorial_dl.replica.keras.replica import KerasReplica
from tutorial_dl.replica.keras.shape_errors import wrong_label
from tutorial_dl.replica.keras.step import NO_NUMBERS


class Outputs:
    """What a KerasReplica does with outputs z, flat lists in the order of the model's outputs."""

    def __init__(self, replica: KerasReplica) -> None:
        self.replica, self.model = replica, replica.model
        self._graph_of_loss = as_graph(self._loss_by_outputs, reduce_retracing=True)
        self._graph_of_test = as_graph(self._tested_outputs, reduce_retracing=True)

    def structured(self, z: list) -> Any:
        """The outputs in the model's own structure."""
        if len(z) == 1 and not hasattr(self.model, "_outputs_struct"):  # a sequential model
            return z[0]
        return keras.tree.pack_sequence_as(self.model._outputs_struct, z)

    def loss_of_outputs(self, z: list, batch: Batch) -> tuple[float, list[np.ndarray]]:
        """(Mean loss, its gradients by z); counts the batch in `trained`."""
        targets = self._ready(batch)
        try:
            found = self._graph_of_loss(
                [tf.constant(a) for a in z], *targets, self.replica.step.counts
            )
        except tf.errors.OpError as error:
            raise wrong_label(self.model, self.replica.arrays(batch)[1]) or error from None
        loss, numbers, gradients = found
        if len(numbers):
            self.replica.training.add(numbers, len(z[0]))
        return float(loss), [np.asarray(tf.convert_to_tensor(g)) for g in gradients]

    def measure_outputs(self, pairs: Iterable[tuple[Batch, list]]) -> dict[str, Any]:
        """As `measure`, for batches with their outputs."""
        samples = 0
        for batch, z in pairs:
            targets = self._ready(batch)
            if samples == 0:
                self.replica.metrics.reset()
            try:
                self._graph_of_test([tf.constant(a) for a in z], *targets)
            except tf.errors.OpError as error:
                raise wrong_label(self.model, self.replica.arrays(batch)[1]) or error from None
            self.replica.metrics.weigh(len(z[0]))
            samples += len(z[0])
        return {"samples": samples, **(self.replica.metrics.sums if samples else {})}

    def _ready(self, batch: Batch) -> tuple[Any, Any]:
        """Targets and weights of samples as tensors; builds metrics and losses before."""
        arrays = self.replica.arrays(batch)
        self.replica.build(arrays)  # what it computes is of no use, as weights may not be there
        if self.model.losses:
            raise ValueError(
                f"model '{self.model.name}' adds losses (add_loss), which need the whole model: "
                "use shard 1"
            )
        return keras.tree.map_structure(tf.constant, arrays[1:])

    def _loss_by_outputs(self, z: list, y: Any, w: Any, counts: bool) -> tuple[Any, Any, list]:
        _, y, w = as_fit((), y, w)
        if counts:
            self.replica.training.reset()
        with tf.GradientTape() as tape:
            tape.watch(z)
            outputs = self.structured(z)
            loss = self.model.compute_loss(
                x=None, y=y, y_pred=outputs, sample_weight=w, training=True
            )
        numbers = self.replica.training.of_batch(None, y, outputs, w) if counts else NO_NUMBERS
        zero = tf.UnconnectedGradients.ZERO
        return loss, numbers, tape.gradient(loss, z, unconnected_gradients=zero)

    def _tested_outputs(self, z: list, y: Any, w: Any) -> None:
        """Let the metrics count a batch, as Keras's test_step does."""
        _, y, w = as_fit((), y, w)
        outputs = self.structured(z)
        loss = self.model.compute_loss(x=None, y=y, y_pred=outputs, sample_weight=w, training=False)
        self.model._loss_tracker.update_state(loss, sample_weight=tf.shape(z[0])[0])
        self.model.compute_metrics(None, y, outputs, sample_weight=w)
