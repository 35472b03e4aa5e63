"""`MetricSums`: what a model's metrics sum over samples, batch by batch.

Keras's metrics add up in their variables, in float32. Here a graph sets them to zero, computes one
batch, and returns their numbers, which are added up in float64 outside: of evaluation, and of the
outputs that gradients are computed from. So both can go on at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tutorial_dl.replica.keras.metrics import REST, KerasMetrics
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf


def _joined(values: list) -> tf.Tensor:
    return tf.concat([tf.reshape(tf.cast(v, tf.float64), [-1]) for v in values], 0)


class MetricSums:
    """Sums over samples by name, as `Replica.measure`, since `sums` was assigned."""

    def __init__(self, metrics: KerasMetrics) -> None:
        self.metrics = metrics
        self.by_batch: list | None = None  # as KerasMetrics.by_batch, if steps of training differ
        self.sums = {}

    # For graphs

    def reset(self) -> None:
        """Before a batch's loss is computed, which updates the means of several outputs' losses."""
        if not self._of_compile_only:
            self.metrics.model.reset_metrics()

    def of_batch(
        self, x: Any, y: Any, outputs: Any, weights: Any, counts: bool = True
    ) -> tf.Tensor:
        """The numbers of the metrics after this batch alone, float64 (k,).

        Without `counts`, zeros but for those of losses: another rank counts the metrics.
        """
        numbers = self._of_batch(x, y, outputs, weights)
        if counts:
            return numbers
        trackers = [*self.metrics.of_outputs, self.metrics.model._loss_tracker]
        own = {id(v) for tracker in trackers for v in tracker.variables}
        variables = self.metrics.variables().values()
        sizes = [int(np.prod(v.shape)) for v in variables]
        kept = np.repeat([float(id(v) in own) for v in variables], sizes)
        return numbers * tf.constant(kept, tf.float64)

    def _of_batch(self, x: Any, y: Any, outputs: Any, weights: Any) -> tf.Tensor:
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

    # Outside

    def add(
        self, numbers: Any, samples: int, counted: Sequence[float] = (), together: int | None = None
    ) -> None:
        """Add the metrics' numbers of a batch, (k,).

        Args:
            numbers: As `of_batch` and `held` return them.
            samples: Of the batch.
            together: Samples of the batch on all ranks, if the metrics are of these.
            counted: For each compiled loss, what it was divided by if its output has a mask, else
                -1. Losses are means over all that counts: weighted by samples, as in Keras, they
                would depend on how sequences are cut into batches.
        """
        numbers = np.array(numbers)
        if not self._samples:
            self._total, self._by_samples = np.zeros((2, len(numbers)))
            self._place()
        counted = list(counted) or [-1] * max(len(self._means), 1)
        losses = []  # of several outputs; Keras counts batches or samples of them, as it happens
        for mean, weight in zip(self._means, counted if self._means else (), strict=True):
            losses.append(_weigh(numbers, mean, samples if weight < 0 else weight))
        if max(counted) >= 0:
            loss = _weigh(numbers, self._tracker, 0 if losses else counted[0])
            if losses:
                terms = zip(self.metrics.loss_weights(), losses, strict=True)
                self._rest += samples * (loss - sum(weight * one for weight, one in terms))
        self._total += numbers
        self._samples += samples
        if self._of_batches():
            self._by_samples += (samples if together is None else together) * numbers

    def _place(self) -> None:
        """Find where numbers have the (total, count) of the loss, and of each output's loss."""
        ids = [id(v) for v in self.metrics.variables().values()]
        sizes = [int(np.prod(v.shape)) for v in self.metrics.variables().values()]
        places = dict(zip(ids, np.cumsum([0, *sizes]).tolist(), strict=False))
        trackers = [*self.metrics.of_outputs, self.metrics.model._loss_tracker]
        pairs = [(places.get(id(m.total)), places.get(id(m.count))) for m in trackers]
        *self._means, self._tracker = pairs

    def _of_batches(self) -> list:
        return self.metrics.by_batch if self.by_batch is None else self.by_batch

    @property
    def sums(self) -> dict[str, Any]:
        if not self._samples:
            return self._earlier
        weighted = {id(v) for metric in self._of_batches() for v in metric.variables}
        found: dict[str, Any] = {"samples": self._samples, REST: self._rest}
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

    @sums.setter
    def sums(self, earlier: dict[str, Any]) -> None:
        self._earlier = earlier  # of a run that was resumed; the metrics may not be built yet
        self._samples, self._rest = 0, 0.0  # of losses with masks: what is in none of the outputs'
        self._total = self._by_samples = np.zeros(0)  # and each batch's numbers * its samples


def _weigh(numbers: np.ndarray, mean: tuple[int, int], weight: float) -> float:
    """Give a mean over a batch another weight, in place; returns the mean."""
    total, count = mean
    value = numbers[total] / (numbers[count] or 1)
    numbers[total], numbers[count] = value * weight, weight
    return float(value)
