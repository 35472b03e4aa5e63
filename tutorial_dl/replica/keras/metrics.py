"""`KerasMetrics`: the metrics of a Keras model as sums over samples, which ranks can add up.

A Keras metric is computed from a few variables: Mean has a total and a count, AUC the true and
false positives and negatives at each of 200 thresholds, MeanIoU a confusion matrix. In all metrics
of Keras they are sums over samples. So the sums of several ranks, added up, give the metric that
one process finds on all samples; the mean of the ranks' AUCs would be something else.

Metrics and losses that a user has written are tried out on a few samples, whole and in two parts.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from numba_kernels.errors import message_of
from tutorial_dl.data.dataset import Batch, Data
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras


def as_fit(x: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
    """A batch as Keras's methods take it: without targets or weights, None instead of ()."""
    return (x, *(None if is_empty(part) else part for part in (y, weights)))


def packed(x: Any, y: Any, weights: Any) -> Any:
    """A batch as `fit` hands it to `train_step` and `test_step`: x, (x, y) or (x, y, weights)."""
    x, y, weights = as_fit(x, y, weights)
    if weights is not None:
        return x, y, weights
    if y is not None:
        return x, y
    return (x,) if isinstance(x, tuple | list) else x


@contextmanager
def unchanged(model: keras.Model) -> Iterator[None]:
    """Afterwards, weights that are not trained and random states are as before, metrics at zero."""
    before = [(v, v.numpy()) for v in states_of(model)]
    try:
        yield
    finally:
        model.reset_metrics()
        for variable, value in before:
            variable.assign(value)


def states_of(model: keras.Model) -> list:
    """The variables that a step may assign, beside those of metrics."""
    # The states of recurrent layers are in no list of variables.
    states = [getattr(layer, "states", None) for layer in model._flatten_layers()]
    states = [v for v in keras.tree.flatten(states) if isinstance(v, keras.Variable)]
    return [*model.non_trainable_variables, *states]


def is_empty(part: Any) -> bool:
    """Whether a batch has no targets, or no weights."""
    return isinstance(part, tuple) and not part


REST = "rest of the loss"
NUMBERED = re.compile(r"_\d+(?=/|$)")
NEAR = 1e-4  # relative, for two ways to the same sum in float32


class KerasMetrics:
    """The losses and metrics that `model.test_step` updates.

    Attributes:
        by_batch: Metrics that hold one number a batch, whatever its size. They are weighted by the
            batches' samples here, so that they do not depend on how samples are cut into batches.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.by_batch: list[keras.metrics.Metric] = []
        self._mean: set[int] = set()  # ids of variables of metrics that hold one number a batch

    def loss_weights(self) -> list[float]:
        given = [one.loss_weights for one in self.model._compile_loss._flat_losses]
        return [1.0 if weight is None else float(weight) for weight in given]

    @property
    def beyond_loss(self) -> bool:
        """Whether there are metrics besides the mean loss, or will be once they are built."""
        several = len(keras.tree.flatten(self.model.loss)) > 1  # each has a mean of its own
        return several or any(m is not self.model._loss_tracker for m in self.model.metrics)

    def result(self, sums: dict[str, np.ndarray]) -> dict[str, float]:
        """The metrics for such sums, of one or more ranks. The model's metrics hold them then."""
        for name, variable in self.variables().items():
            # A metric that is the last batch's number, as Keras has it, is the mean over batches.
            numbers = np.asarray(sums[name]) / (
                sums["samples"] if id(variable) in self._mean else 1
            )
            variable.assign(numbers.astype(variable.dtype))
        if self.of_outputs and not float(self.model._loss_tracker.count):  # there were masks
            means = [float(tracker.result()) for tracker in self.of_outputs]
            rest = float(sums[REST]) / float(sums["samples"])
            loss = rest + sum(w * m for w, m in zip(self.loss_weights(), means, strict=True))
            self.model._loss_tracker.update_state(loss)
        found = {name: np.asarray(m) for name, m in self.model.get_metrics_result().items()}
        for name, value in found.items():
            if value.size != 1:
                raise ValueError(
                    f"model '{self.model.name}': metric '{name}' has {value.size} values, expected "
                    "one number; most metrics have it with average='macro'"
                )
        return {name: float(value.reshape(())) for name, value in found.items()}

    def try_out(self, batch: Batch, step: Callable | None = None) -> list[str]:
        """Find out what metrics that Keras does not update for each sample sum up.

        Returns the names of those that are neither sums over samples nor means of a batch, so that
        they need whole batches.

        Args:
            step: What adds a batch to the metrics; by default the model's test_step.
        """
        self._check_test_step(batch)
        if len(Data(*batch)) < 2 or not self._unknown():
            return []
        (again, *found), sizes = self._of_parts(batch, step or self._test)
        self.by_batch, whole = [], []
        for metric in self._unknown():
            numbers = [of[id(metric)] for of in found]
            drawn = ~np.isclose(again[id(metric)], numbers[0], NEAR)
            if not drawn.all():  # a count remains, if the model draws random numbers
                numbers = [n[~drawn] for n in numbers]
            if _adds_up(*numbers):
                continue
            if _adds_up(*(n * size for n, size in zip(numbers, sizes, strict=True))):
                self.by_batch.append(metric)
                self._mean |= {id(variable) for variable in metric.variables}
            else:
                whole.append(metric.name)
        return whole

    def _of_parts(self, batch: Batch, step: Callable) -> tuple[list[dict], list[int]]:
        """Each metric's numbers after the whole batch, twice, and parts of it; their samples."""
        data, found = Data(*batch), []
        n = len(data)
        parts = parts_of(n, (n // 4, n // 2 + 1) if n > 3 else (1,))
        for part in (slice(0, n), slice(0, n), *parts):
            self.model.reset_metrics()
            step(data.take(part))
            metrics = [self.model._loss_tracker, *self._metrics()]
            found.append({
                id(m): np.concatenate([_numbers(v).ravel() for v in m.variables]) for m in metrics
            })  # fmt: skip
        self.model.reset_metrics()
        return found, [n, *(part.stop - part.start for part in parts)]

    def _unknown(self) -> list[keras.metrics.Metric]:
        """Metrics that may hold anything: all but those that Keras updates for each sample."""
        compiled = self.model._compile_metrics
        known = [] if compiled is None else compiled.metrics
        return [m for m in self._metrics() if not (_of_keras(m) and any(m is one for one in known))]

    def _test(self, batch: Batch) -> Any:
        return self.model.test_step(packed(*batch))

    def _check_test_step(self, batch: Batch) -> None:
        """Raise ValueError if a test_step of the user's keeps its loss in no metric."""
        if type(self.model).test_step is keras.Model.test_step:
            return
        self.model.reset_metrics()
        said, held = self._test(batch), self.model.get_metrics_result()
        self.model.reset_metrics()
        if "loss" not in held or not np.allclose(said.get("loss", held["loss"]), held["loss"]):
            raise ValueError(
                f"model '{self.model.name}': its test_step must update a metric named 'loss', such "
                "as keras.metrics.Mean(name='loss')"
            )

    def failed(self, batch: Batch) -> ValueError | None:
        """After `test_step` has failed on a batch: the error of a metric, if it is to blame."""
        x, y, _ = as_fit(*batch)
        try:
            outputs = self.model(x, training=False)
        except Exception:
            return None  # the model itself failed
        if keras.tree.is_nested(outputs) or keras.tree.is_nested(y):
            return None
        for metric in self._metrics():
            try:
                metric.update_state(y, outputs)
            except Exception as error:
                n, m = (f"({', '.join(['n', *map(str, a.shape[1:])])})" for a in (y, outputs))
                return ValueError(
                    f"model '{self.model.name}': metric '{metric.name}' does not fit targets of "
                    f"shape {n} and outputs of shape {m}: {message_of(error).splitlines()[0]}"
                )
        return None

    @property
    def beyond_compile_of_keras(self) -> bool:
        """Whether there are losses or metrics other than Keras's own that `compile` was given."""
        layers = [x for x in self.model.layers if not isinstance(x, keras.Model)]
        others = [*self.model._metrics, *(m for x in layers for m in x.metrics)]
        losses = all(map(_of_keras, keras.tree.flatten(self.model.loss)))
        return bool(others) or not (losses and self.compiled_of_keras)

    @property
    def compiled_of_keras(self) -> bool:
        compiled = self.model._compile_metrics
        given = [] if compiled is None else [compiled._user_metrics]
        given += [] if compiled is None else [compiled._user_weighted_metrics]
        return all(map(_of_keras, keras.tree.flatten(given)))

    @property
    def losses_of_keras(self) -> bool:
        parts = [*keras.tree.flatten(self.model.loss), self.model, *self.model._flatten_layers()]
        return all(map(_of_keras, parts))

    def _metrics(self) -> list[keras.metrics.Metric]:
        """The compiled metrics, and those that the model or its layers have."""
        found = []
        for metric in self.model.metrics:
            if metric is self.model._compile_metrics:
                found += metric.metrics
            elif metric is not self.model._loss_tracker:
                found.append(metric)
        tracked = {id(m) for m in self.of_outputs}
        return [m for m in found if id(m) not in tracked and m.variables]

    @property
    def of_outputs(self) -> list[keras.metrics.Metric]:
        """The means of the single outputs' losses, if there are several."""
        losses = self.model._compile_loss
        return [] if losses is None else losses.metrics

    def variables(self) -> dict[str, Any]:
        """The variables of all metrics, by number and name.

        Keras numbers metrics of the same name in the order in which a process makes them; these
        numbers are left out, so that a resumed run finds the names of the first one.
        """
        variables = [v for metric in self.model.metrics for v in metric.variables]
        return {f"{i} {NUMBERED.sub('', v.path)}": v for i, v in enumerate(variables)}


def parts_of(samples: int, cut: tuple[int, ...]) -> list[slice]:
    """Samples, cut before those of these numbers."""
    return [slice(a, b) for a, b in pairwise((0, *cut, samples))]


def _numbers(variable) -> np.ndarray:
    return np.asarray(variable.value).astype(np.float64)


def _adds_up(whole: np.ndarray, *parts: np.ndarray) -> bool:
    return bool(np.allclose(sum(parts), whole, rtol=NEAR, atol=NEAR))


def is_ours_or_keras(thing: Any) -> bool:
    """Whether no code of the user's is in a layer or a loss."""
    function = getattr(thing, "function", None)  # of a Lambda
    return _is_of(thing, ("keras", "tutorial_dl")) and _is_of(function, ("keras", "tutorial_dl"))


def _of_keras(thing: Any) -> bool:
    """Whether a name, a function, or an object and the function that it wraps, are Keras's own."""
    return _is_of(thing, ("keras",))


def _is_of(thing: Any, packages: tuple[str, ...]) -> bool:
    if thing is None or isinstance(thing, str):
        return True
    function = getattr(thing, "_fn", getattr(thing, "fn", None))
    parts = [thing] if hasattr(thing, "__qualname__") else [type(thing)]
    parts += [] if function is None else [function]
    return all(str(getattr(part, "__module__", "")).split(".")[0] in packages for part in parts)
