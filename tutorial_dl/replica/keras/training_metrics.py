"""`TrainingMetrics`: what a model's metrics sum over the samples that it trains on.

Keras updates the metrics of `compile` with the outputs that the gradient is computed from. Here the
graph of the gradient does so too, and returns the metrics' numbers of that batch. They are added up
in float64, outside of the metrics, which evaluation uses meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorial_dl.replica.keras.metrics import REST, KerasMetrics
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf


def _joined(values: list) -> tf.Tensor:
    return tf.concat([tf.reshape(tf.cast(v, tf.float64), [-1]) for v in values], 0)


class TrainingMetrics:
    """Sums over samples by name, as `KerasMetrics.sums`, since `sums` was assigned."""

    def __init__(self, metrics: KerasMetrics) -> None:
        self.metrics = metrics
        self.by_batch: list | None = None  # as KerasMetrics.by_batch, if steps of training differ
        self._begin({})

    def _begin(self, earlier: dict[str, Any]) -> None:
        self._earlier = earlier  # of a run that was resumed; the metrics may not be built yet
        self._samples, self._total = 0, np.zeros(0)
        self._by_samples = np.zeros(0)  # each batch's numbers * its samples

    # For the graph of a gradient

    def reset(self) -> None:
        """Before a batch's loss is computed, which updates the means of several outputs' losses."""
        if not self._of_compile_only:
            self.metrics.model.reset_metrics()

    def of_batch(self, x: Any, y: Any, outputs: Any, weights: Any) -> tf.Tensor:
        """The numbers of the metrics after this batch alone, float64 (k,)."""
        model, variables = self.metrics.model, list(self.metrics.variables().values())
        if not self._of_compile_only:
            model.compute_metrics(x, y, outputs, sample_weight=weights)
            return self.held()
        # Metrics whose variables are not assigned take half the time: 25 us instead of 50 for
        # accuracy (measured 2026-11-24, 2-core x86-64 virtual machine).
        zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in variables]
        with keras.StatelessScope(state_mapping=zeros) as scope:
            model.compute_metrics(x, y, outputs, sample_weight=weights)
        return _joined([scope.get_current_value(v) for v in variables])

    def held(self) -> tf.Tensor:
        """The numbers that the metrics hold, float64 (k,)."""
        return _joined([v.value for v in self.metrics.variables().values()])

    @property
    def _of_compile_only(self) -> bool:
        """Whether there are only the metrics of `compile`, which only compute_metrics updates."""
        model = self.metrics.model
        if type(model).compute_metrics is not keras.Model.compute_metrics:
            return False
        if not self.metrics.compiled_of_keras:  # a tf.function would keep its tensors
            return False
        known = (model._loss_tracker, model._compile_metrics)
        return all(any(m is one for one in known) for m in model.metrics)

    def add(self, numbers: tf.Tensor, samples: int) -> None:
        """Add what `of_batch` was after a batch of so many samples."""
        numbers = np.array(numbers)
        if not self._samples:
            self._total, self._by_samples = np.zeros((2, len(numbers)))
            self._means = self._places_of_means()
        for total, count in self._means:  # Keras counts batches or samples, as it happens
            numbers[total] *= samples / (numbers[count] or 1)
            numbers[count] = samples
        self._total += numbers
        self._samples += samples
        if self._of_batches():
            self._by_samples += samples * numbers

    def _places_of_means(self) -> list[tuple[int, int]]:
        """Where `of_batch` has the (total, count) of each of several outputs' losses."""
        ids = [id(v) for v in self.metrics.variables().values()]
        sizes = [int(np.prod(v.shape)) for v in self.metrics.variables().values()]
        places = dict(zip(ids, np.cumsum([0, *sizes]).tolist(), strict=False))
        return [(places[id(m.total)], places[id(m.count)]) for m in self.metrics.of_outputs]

    @property
    def sums(self) -> dict[str, Any]:
        if not self._samples:
            return self._earlier
        weighted = {id(v) for metric in self._of_batches() for v in metric.variables}
        found: dict[str, Any] = {"samples": self._samples, REST: 0.0}
        first = 0
        for name, variable in self.metrics.variables().items():
            last = first + int(np.prod(variable.shape))
            numbers = self._by_samples if id(variable) in weighted else self._total
            found[name] = numbers[first:last].reshape(variable.shape)
            first = last
        if not self._earlier:
            return found
        shapes, theirs = (
            {name: np.shape(of) for name, of in sums.items()} for sums in (found, self._earlier)
        )
        if shapes != theirs:  # the run went on with other metrics: there are none of this epoch
            return {}
        return {name: of + np.asarray(self._earlier[name]) for name, of in found.items()}

    def _of_batches(self) -> list:
        return self.metrics.by_batch if self.by_batch is None else self.by_batch

    @sums.setter
    def sums(self, given: dict[str, Any]) -> None:
        self._begin(given)
