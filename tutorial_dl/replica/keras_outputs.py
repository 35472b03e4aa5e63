"""`KerasOutputs`: loss and metrics of a Keras model from outputs that were computed elsewhere.

Where ranks divide a model (model_parallel/keras_sharded.py), TensorFlow never computes the whole
model at once; what follows on its outputs is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.keras_metrics import as_fit, is_empty
from tutorial_dl.replica.keras_misfits import wrong_label
from tutorial_dl.replica.keras_steps import NO_NUMBERS
from tutorial_dl.replica.keras_variables import as_graph, keras, tf
from tutorial_dl.replica.keras_xla import KerasXla


class KerasOutputs(KerasXla):
    """What a KerasReplica does with outputs z, flat lists in the order of the model's outputs."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self._graph_of_loss = as_graph(self._loss_by_outputs, reduce_retracing=True)
        self._graph_of_test = as_graph(self._tested_outputs, reduce_retracing=True)

    @property
    def has_numbers_of_its_own(self) -> bool:
        """Whether losses or metrics are others than Keras's own that `compile` was given."""
        return self._metrics.beyond_compile_of_keras

    def structured(self, z: list) -> Any:
        """The outputs in the model's own structure."""
        if len(z) == 1 and not hasattr(self.model, "_outputs_struct"):  # a sequential model
            return z[0]
        return keras.tree.pack_sequence_as(self.model._outputs_struct, z)

    def loss_of_outputs(self, z: list, batch: Batch) -> tuple[float, list[np.ndarray]]:
        """(Mean loss, its gradients by z); counts the batch in `trained`."""
        targets = self._ready(batch)
        try:
            found = self._graph_of_loss([tf.constant(a) for a in z], *targets, self._counts)
        except tf.errors.OpError as error:
            raise wrong_label(self.model, self._arrays(batch)[1]) or error from None
        loss, numbers, gradients = found
        if len(numbers):
            self._training.add(numbers, len(z[0]))
        return float(loss), [np.asarray(tf.convert_to_tensor(g)) for g in gradients]

    def measure_outputs(self, pairs: Iterable[tuple[Batch, list]]) -> dict[str, Any]:
        """As `measure`, for batches with their outputs."""
        samples = 0
        for batch, z in pairs:
            targets = self._ready(batch)
            if samples == 0:
                self._metrics.reset()
            try:
                self._graph_of_test([tf.constant(a) for a in z], *targets)
            except tf.errors.OpError as error:
                raise wrong_label(self.model, self._arrays(batch)[1]) or error from None
            self._metrics.weigh(len(z[0]))
            samples += len(z[0])
        return {"samples": samples, **(self._metrics.sums if samples else {})}

    def check_batch(self, batch: Batch, shared: bool) -> None:
        """Raise ValueError if the model can't train on batches like this one.

        Targets must be labels that the loss takes. If batches are `shared` by ranks, their losses
        must be means over samples, and no layer may wait for ranks of tf.distribute.
        """
        for layer in self.model._flatten_layers() if shared else ():
            if getattr(layer, "synchronized", False) and layer not in self._collective:
                raise ValueError(
                    f"layer '{layer.name}' has synchronized=True, which only tf.distribute heeds: "
                    "convert the model with tutorial_dl.layers.convert(model)"
                )
        arrays = self._arrays(batch)
        if wrong := wrong_label(self.model, arrays[1]):
            raise wrong
        weighted = any(
            getattr(loss, "reduction", "") == "mean_with_sample_weight"
            for loss in keras.tree.flatten(self.model.loss)
        )
        if weighted and shared and not is_empty(arrays[2]):
            raise ValueError(
                f"model '{self.model.name}': a loss with reduction 'mean_with_sample_weight' and "
                "weights of samples is no mean over samples; use 'sum_over_batch_size'"
            )

    def _ready(self, batch: Batch) -> tuple[Any, Any]:
        """Targets and weights of samples as tensors; builds metrics and losses before."""
        arrays = self._arrays(batch)
        self._build(arrays)  # what it computes is of no use, as weights may not be there
        if self.model.losses:
            raise ValueError(
                f"model '{self.model.name}' adds losses (add_loss), which need the whole model: "
                "use shard 1"
            )
        return keras.tree.map_structure(tf.constant, arrays[1:])

    def _loss_by_outputs(self, z: list, y: Any, w: Any, counts: bool) -> tuple[Any, Any, list]:
        _, y, w = as_fit((), y, w)
        if counts:
            self._training.reset()
        with tf.GradientTape() as tape:
            tape.watch(z)
            outputs = self.structured(z)
            loss = self.model.compute_loss(
                x=None, y=y, y_pred=outputs, sample_weight=w, training=True
            )
        numbers = self._training.of_batch(None, y, outputs, w) if counts else NO_NUMBERS
        zero = tf.UnconnectedGradients.ZERO
        return loss, numbers, tape.gradient(loss, z, unconnected_gradients=zero)

    def _tested_outputs(self, z: list, y: Any, w: Any) -> None:
        """Let the metrics count a batch, as Keras's test_step does."""
        _, y, w = as_fit((), y, w)
        outputs = self.structured(z)
        loss = self.model.compute_loss(x=None, y=y, y_pred=outputs, sample_weight=w, training=False)
        self.model._loss_tracker.update_state(loss, sample_weight=tf.shape(z[0])[0])
        self.model.compute_metrics(None, y, outputs, sample_weight=w)
