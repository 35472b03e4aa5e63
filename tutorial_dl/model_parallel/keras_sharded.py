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
from tutorial_dl.replica.keras_metrics import as_fit
from tutorial_dl.replica.keras_misfits import wrong_label
from tutorial_dl.replica.keras_steps import NO_NUMBERS, keras, tf
from tutorial_dl.replica.keras_tensorflow import KerasReplica
from tutorial_dl.replica.layers import At


class KerasHead:
    """Inputs, loss and metrics of a KerasReplica, from the outputs of its last layers."""

    def __init__(self, parts: KerasParts) -> None:
        self.inner, self.model = parts.replica, parts.model
        given = [id(t) for t in parts.crossing(len(parts.nodes))]
        self._places = [given.index(id(t)) for t in parts.graph.outputs]
        self._training = tf.function(self._loss_and_gradient, reduce_retracing=True)
        self._testing = tf.function(self._tested, reduce_retracing=True)

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

    def outputs(self, y: list) -> Any:
        return self._packed([np.asarray(a) for a in y])

    def _packed(self, y: list) -> Any:
        """The model's outputs in its own structure."""
        found = [y[i] for i in self._places]
        if len(found) == 1 and not hasattr(self.model, "_outputs_struct"):  # sequential
            return found[0]
        return keras.tree.pack_sequence_as(self.model._outputs_struct, found)

    def _loss_and_gradient(self, z: list, y: Any, w: Any, counts: bool) -> tuple[Any, Any, list]:
        _, y, w = as_fit((), y, w)
        if counts:
            self.inner._training.reset()
        with tf.GradientTape() as tape:
            tape.watch(z)
            outputs = self._packed(z)
            loss = self.model.compute_loss(
                x=None, y=y, y_pred=outputs, sample_weight=w, training=True
            )
        numbers = self.inner._training.of_batch(None, y, outputs, w) if counts else NO_NUMBERS
        found = tape.gradient(loss, z, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss, numbers, found

    def loss(self, y: list, batch: Batch) -> tuple[float, list[np.ndarray]]:
        """Mean loss, and its gradient by the outputs."""
        arrays, z = self._ready(batch), [tf.constant(a) for a in y]
        try:
            loss, numbers, found = self._training(z, *arrays, counts=self.inner.trained is not None)
        except tf.errors.OpError as error:
            raise wrong_label(self.model, self.inner._arrays(batch)[1]) or error from None
        if len(numbers):
            self.inner._training.add(numbers, len(y[0]))
        floats = [g for g in found if g.dtype.is_floating]
        return float(loss), [np.asarray(tf.convert_to_tensor(g)) for g in floats]

    def _ready(self, batch: Batch) -> tuple[Any, Any]:
        """Targets and weights of samples as tensors; builds metrics and losses before."""
        arrays = self.inner._arrays(batch)
        self.inner._build(arrays)  # its outputs are of no use, as weights may not be there
        if self.model.losses:
            raise ValueError(
                f"model '{self.model.name}' adds losses (add_loss), which need the whole model: "
                "use shard 1"
            )
        return keras.tree.map_structure(tf.constant, arrays[1:])

    def _tested(self, z: list, y: Any, w: Any) -> None:
        """Let the metrics count a batch, as Keras's test_step does."""
        _, y, w = as_fit((), y, w)
        outputs = self._packed(z)
        loss = self.model.compute_loss(x=None, y=y, y_pred=outputs, sample_weight=w, training=False)
        self.model._loss_tracker.update_state(loss, sample_weight=tf.shape(z[0])[0])
        self.model.compute_metrics(None, y, outputs, sample_weight=w)

    def measure(self, pairs: Iterable[tuple[Batch, list]]) -> dict[str, Any]:
        """As `Replica.measure`, for batches with the model's outputs."""
        samples, metrics = 0, self.inner._metrics
        for batch, y in pairs:
            arrays = self._ready(batch)
            if samples == 0:
                metrics.reset()
            try:
                self._testing([tf.constant(a) for a in y], *arrays)
            except tf.errors.OpError as error:
                raise wrong_label(self.model, self.inner._arrays(batch)[1]) or error from None
            here = self.samples(batch)
            metrics.weigh(here, [])
            samples += here
        return {"samples": samples, **(metrics.sums if samples else {})}

    def metrics_of(self, sums: dict[str, Any]) -> dict[str, float]:
        return self.inner.metrics_of(sums)

    def try_out(self, batch: Batch) -> None:
        if wrong := wrong_label(self.model, self.inner._arrays(batch)[1]):
            raise wrong


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
    if inner._metrics.beyond_compile_of_keras:
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
