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
        self._begin({})

    def _begin(self, earlier: dict[str, Any]) -> None:
        self._earlier = earlier  # of a run that was resumed; the metrics may not be built yet
        self._samples, self._total = 0, np.zeros(0)
        self._by_samples = np.zeros(0)  # each batch's numbers * its samples

    def of_batch(self) -> tf.Tensor:
        """The numbers that the metrics hold now, float64 (k,), for a graph."""
        values = [v.value for v in self.metrics.variables().values()]
        return tf.concat([tf.reshape(tf.cast(v, tf.float64), [-1]) for v in values], 0)

    def add(self, numbers: tf.Tensor, samples: int) -> None:
        """Add what `of_batch` was after a batch of so many samples."""
        numbers = np.asarray(numbers)
        if not self._samples:
            self._total, self._by_samples = np.zeros((2, len(numbers)))
        self._total += numbers
        self._samples += samples
        if self.metrics.by_batch:
            self._by_samples += samples * numbers

    @property
    def sums(self) -> dict[str, Any]:
        if not self._samples:
            return self._earlier
        weighted = {id(v) for metric in self.metrics.by_batch for v in metric.variables}
        found: dict[str, Any] = {"samples": self._samples, REST: 0.0}
        first = 0
        for name, variable in self.metrics.variables().items():
            last = first + int(np.prod(variable.shape))
            numbers = self._by_samples if id(variable) in weighted else self._total
            found[name] = numbers[first:last].reshape(variable.shape)
            first = last
        return {name: of + np.asarray(self._earlier.get(name, 0)) for name, of in found.items()}

    @sums.setter
    def sums(self, given: dict[str, Any]) -> None:
        self._begin(given)
