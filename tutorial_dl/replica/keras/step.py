"""`Step`: what TensorFlow computes of a Keras model for a batch: gradients, losses, metrics.

The gradient is a function of tensors (`keras.StatelessScope`). The weights are tensors that lie in
the replica's memory, so a graph needs no variable to read them, and what a kernel writes there is
seen by the next step. States, such as moving statistics and random seeds, are variables, which the
step assigns at its end.

    loss, gradients = step(batch, loss scale, weights ...)

This needs layers and losses whose code we know. A `tf.function` within a user's layer would keep
the tensors of the first graph that it was traced for; a train_step of the user's takes gradients by
variables; and so does SpectralNormalization, which assigns weights of which it then takes the
gradient. Such models are computed by their variables, which lie in the same memory.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from tutorial_dl.replica.keras import own_step
from tutorial_dl.replica.keras.collective_layers import has_samples, without_samples
from tutorial_dl.replica.keras.graphs import Graphs, keras, tf
from tutorial_dl.replica.keras.losses import by_count, losses_by, over_ranks, whole_batch
from tutorial_dl.replica.keras.metrics import as_fit, is_ours_or_keras, packed, states_of
from tutorial_dl.replica.keras.sums import MetricSums
from tutorial_dl.replica.keras.try_out import Findings

NO_NUMBERS = np.zeros(0)


class NeedsVariables(Exception):
    """A weight has no gradient as a tensor: perhaps a layer (TFSMLayer) uses its variable."""


class Step:
    """The steps of a model, for `Graphs.run`.

    Args:
        model: The model.
        variables: Its trainable weights.
        graphs: What traces the steps.
        training: What counts metrics while training.

    Attributes:
        by_tensors: Whether the steps of a gradient take the weights as tensors.
        counts: Whether metrics are updated while training.
        team: The ranks that share each batch, if something must be computed with them: `whole`,
            and losses with masks. None: nothing.
        whole: What needs the whole batch.
    """

    def __init__(
        self, model: keras.Model, variables: list, graphs: Graphs, training: MetricSums
    ) -> None:
        self.model, self.variables = model, variables
        self.graphs, self.training = graphs, training
        self.counts, self.team, self.whole, self._mode = False, None, Findings(), True
        self.own = own_step.has_own_step(model)
        layers = model._flatten_layers()
        assigns = any(isinstance(x, keras.layers.SpectralNormalization) for x in layers)
        known = [*layers, *keras.tree.flatten(model.loss)]
        self.by_tensors = not (self.own or assigns) and all(map(is_ours_or_keras, known))

    def gradient(self, x: Any, y: Any, w: Any, loss_scale: Any, *weights: Any) -> list[tf.Tensor]:
        """[loss, numbers of metrics, gradient of loss_scale * loss by each weight ...]

        x, y, w: inputs, targets and weights of samples; y and w are () if there are none.
        """
        return self.graphs.compiled(self._gradient)(x, y, w, loss_scale, *weights)

    def gradient_in_inference(self, *arguments: Any) -> list[tf.Tensor]:
        """As `gradient`, but layers draw no masks."""
        self._mode = False
        try:
            return self.gradient(*arguments)
        finally:
            self._mode = True

    def gradient_without_samples(self, *arguments: Any) -> list[tf.Tensor]:
        with without_samples():
            return self.gradient(*arguments)

    def test(self, x: Any, y: Any, w: Any) -> list[tf.Tensor]:
        """[numbers of the metrics, V of each loss, or -1; see losses.py]"""
        return self.graphs.compiled(self._test)(x, y, w)

    def _gradient(self, x: Any, y: Any, w: Any, loss_scale: Any, *weights: Any) -> list[tf.Tensor]:
        states = [] if self.team is None else self.whole.states
        before = [tf.identity(v.value) for v, _ in states]
        if self.own:
            batch = packed(x, y, w)
            loss, gradients = own_step.loss_and_gradients(self.model, batch, loss_scale)
            numbers = self.training.held() if self.counts else NO_NUMBERS
        else:
            loss, numbers, gradients = self._by_tape(*as_fit(x, y, w), loss_scale, weights)
        if states:
            self._join_states(before)
        gradients = [
            # Embeddings have tf.IndexedSlices as gradients; convert_to_tensor makes them dense.
            tf.zeros_like(v.value) if g is None else tf.convert_to_tensor(g)
            for v, g in zip(self.variables, gradients, strict=True)
        ]
        return [loss, numbers, *gradients]

    def _by_tape(self, x: Any, y: Any, w: Any, loss_scale: Any, weights: tuple) -> tuple:
        """Loss, numbers of metrics and gradients, as Keras's own train_step computes them."""
        if self.counts:
            self.training.reset()
        pairs = zip(self.variables, weights, strict=True) if weights else ()
        scope = keras.StatelessScope(pairs, collect_losses=True) if weights else nullcontext()
        with tf.GradientTape(watch_accessed_variables=not weights) as tape:
            tape.watch(weights)
            with scope:
                loss, outputs = self._loss(x, y, w)
            scaled = loss * loss_scale
        gradients = tape.gradient(scaled, list(weights) or [v.value for v in self.variables])
        if weights:
            if any(g is None for g in gradients):
                raise NeedsVariables
            for variable in [*states_of(self.model), *self.model.metrics_variables]:
                if (value := scope.get_current_value(variable)) is not None:
                    variable.assign(value)
        return loss, self._numbers(x, y, outputs, w) if self.counts else NO_NUMBERS, gradients

    def _numbers(self, x: Any, y: Any, outputs: Any, w: Any) -> tf.Tensor:
        """The metrics' numbers. If one needs the whole batch, the last rank alone counts it, and
        they end with the batch's samples.
        """
        team = self.team
        if team is None or not self.whole.metrics:
            return self.training.of_batch(x, y, outputs, w)
        given = (() if y is None else y, outputs, () if w is None else w)
        y, outputs, w = whole_batch(team, given)
        _, y, w = as_fit(x, y, w)
        counts = team.rank == team.size - 1
        numbers = self.training.of_batch(x, y, outputs, w, counts)
        samples = tf.cast(tf.shape(keras.tree.flatten(outputs)[0])[:1], tf.float64)
        return tf.concat([numbers, samples], 0)

    def _join_states(self, before: list[tf.Tensor]) -> None:
        """Give sums and extremes that a layer keeps the values of all ranks' samples."""
        from tutorial_dl.replica.keras.collectives import in_order

        team, states = self.team, self.whole.states
        signs = {"sum": 1, "max": 1, "min": -1}
        parts = [[], []]
        for (variable, how), old in zip(states, before, strict=True):
            old, new = (tf.cast(t, tf.float64) for t in (old, variable.value))
            here = new - old if how == "sum" else signs[how] * new
            if not has_samples():
                here = tf.zeros_like(old) if how == "sum" else signs[how] * old
            parts[how != "sum"].append(tf.reshape(here, [-1]))
        sent = [tf.concat([tf.zeros(1, tf.float64), *part], 0) for part in parts]

        def joined(arrays: list[np.ndarray]) -> list[np.ndarray]:
            sums, extremes = map(np.array, arrays)
            return [team.allreduce(sums), team.allreduce(extremes, "max")]

        kinds = [(t.dtype, t.shape) for t in sent]
        found = in_order(joined, sent, kinds, "states", all_teams=False)
        places = [1, 1]
        for (variable, how), old in zip(states, before, strict=True):
            which, size = int(how != "sum"), int(np.prod(variable.shape))
            part = found[which][places[which] : places[which] + size]
            places[which] += size
            value = signs[how] * tf.reshape(part, variable.shape)
            value += tf.cast(old, tf.float64) if how == "sum" else 0
            variable.assign(tf.cast(value, variable.dtype))

    def _loss(self, x: Any, y: Any, w: Any) -> tuple[tf.Tensor, Any]:
        model, team = self.model, self.team
        outputs = model(x, training=self._mode)
        change = None if team is None else over_ranks(team, self.whole.losses)
        with nullcontext() if team is None else losses_by(model, change):
            return model.compute_loss(
                x=x, y=y, y_pred=outputs, sample_weight=w, training=True
            ), outputs

    def _test(self, x: Any, y: Any, w: Any) -> list[tf.Tensor]:
        found = []

        def seen(loss: tf.Tensor, counted: tf.Tensor | None, samples: tf.Tensor) -> tf.Tensor:
            found.append(tf.constant(-1, tf.float64) if counted is None else counted)
            return loss

        self.model.reset_metrics()
        with losses_by(self.model, by_count(seen)):
            self.model.test_step(packed(x, y, w))
        return [self.training.held(), *found]
