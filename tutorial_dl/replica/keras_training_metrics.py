"""`TrainingMetrics`: what a model's metrics sum over the samples that it trains on.

Keras updates the metrics of `compile` with the outputs that the gradient is computed from. Here the
graph of the gradient does so too, and returns the metrics' numbers of that batch. They are added up
in float64, outside of the metrics, which evaluation uses meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorial_dl.replica.keras_metrics import REST, KerasMetrics
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import tensorflow as tf


class TrainingMetrics:
    """Sums over samples by name, as `KerasMetrics.sums`, since `sums` was assigned."""

    def __init__(self, metrics: KerasMetrics) -> None:
        self.metrics = metrics
        self._begin()

    def _begin(self) -> None:
        self._total, self._by_batch, self._samples = 0.0, 0.0, 0

    def of_batch(self) -> tf.Tensor:
        """The numbers that the metrics hold now, float64 (k,), for a graph."""
        values = [v.value for v in self.metrics.variables().values()]
        return tf.concat([tf.reshape(tf.cast(v, tf.float64), [-1]) for v in values], 0)

    def add(self, numbers: tf.Tensor, samples: int) -> None:
        """Add what `of_batch` was after a batch of so many samples."""
        self._total += np.asarray(numbers)
        self._samples += samples
        if self.metrics.by_batch:
            self._by_batch += samples * np.asarray(numbers)

    @property
    def sums(self) -> dict[str, Any]:
        if not self._samples:
            return {}
        variables = self.metrics.variables()
        sizes = [int(np.prod(v.shape)) for v in variables.values()]
        ends = np.cumsum(sizes)[:-1]
        weighted = {id(v) for metric in self.metrics.by_batch for v in metric.variables}
        found: dict[str, Any] = {"samples": self._samples}
        totals = np.split(self._total, ends)
        by_batch = np.split(np.broadcast_to(self._by_batch, self._total.shape), ends)
        for (name, variable), total, of_it in zip(variables.items(), totals, by_batch, strict=True):
            found[name] = (of_it if id(variable) in weighted else total).reshape(variable.shape)
        return found | {REST: 0.0}

    @sums.setter
    def sums(self, given: dict[str, Any]) -> None:
        self._begin()
        if given:
            numbers = [np.ravel(given[name]) for name in self.metrics.variables()]
            self._total = self._by_batch = np.concatenate(numbers).astype(np.float64)
            self._samples = int(given["samples"])
