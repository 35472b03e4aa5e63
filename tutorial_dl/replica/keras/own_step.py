"""Keras models with a `train_step` of their own: the gradients that it applies, not applied.

The step is called with a stand-in for the model, whose `optimizer` takes the gradients that are
handed to `apply`, and leaves the weights alone; the strategy then updates them. On one rank that is
what Keras does. If several ranks share a batch, the mean of their gradients must be the gradient of
the whole batch. No one can tell from the code of a `train_step`, so it is tried out on a few
samples (`check`):

    whole batch = its parts:  g(a + b) = (n_a g(a) + n_b g(b)) / (n_a + n_b)

at the present weights, and at weights that are many times as large, where gradients are large, too:
gradients that are clipped do not add up there. What fails, such as a contrastive loss or clipping
within `train_step`, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getattr_static
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from tutorial_dl.data.dataset import Batch, Data
from tutorial_dl.replica.keras.metrics import packed
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf

LARGER = (64.0, 16.0, 4.0)  # times the weights; the first that gives finite gradients
NEAR = 1e-4  # relative to the largest entry, for two ways to the same gradient in float32
NEAR_HALF = 2e-2  # where layers compute in half precision


def has_own_step(model: keras.Model) -> bool:
    return type(model).train_step is not keras.Model.train_step


def no_test_step(model: keras.Model) -> ValueError | None:
    """The error of a model that can be trained, but not evaluated."""
    own = type(model).test_step is not keras.Model.test_step
    if own or model._compile_loss is not None or not has_own_step(model):
        return None
    return ValueError(
        f"model '{model.name}' computes its loss in train_step only: give it a test_step, too, "
        "for validation"
    )


def complain(model: keras.Model, words: str) -> ValueError:
    return ValueError(
        f"model '{model.name}': its train_step {words}; train it with model.fit and "
        "tutorial_dl.horovod"
    )


class Recorder:
    """Stands in for the optimizer of `model`: keeps the gradients that it is told to apply.

    All else is the optimizer's, except for what changes by the step.

    Attributes:
        gradients: A tensor, or None, for each of the model's trainable weights.
        scaled: Whether `scale_loss` was called, as mixed_float16 needs it.
    """

    def __init__(self, model: keras.Model, loss_scale: Any) -> None:
        self.model, self.loss_scale = model, loss_scale
        self.optimizer = model.optimizer
        self.gradients: list | None = None
        self.scaled = False

    def __getattr__(self, name: str) -> Any:
        schedules = keras.optimizers.schedules.LearningRateSchedule
        by_step = isinstance(getattr(self.optimizer, "_learning_rate", None), schedules)
        if name == "iterations" or (name == "learning_rate" and by_step):
            raise complain(self.model, f"reads optimizer.{name}, which others count here")
        return getattr(self.optimizer, name)

    def scale_loss(self, loss: Any) -> Any:
        self.scaled = True
        return loss * tf.cast(self.loss_scale, loss.dtype)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        own = self.model.trainable_variables
        variables = own if trainable_variables is None else list(trainable_variables)
        if self.gradients is not None:
            raise complain(self.model, "applies gradients more than once")
        found = {id(v): g for v, g in zip(variables, grads, strict=True)}
        if not found.keys() <= {id(v) for v in own}:
            raise complain(self.model, "applies gradients to weights that are not trainable")
        self.gradients = [found.get(id(v)) for v in own]

    def apply_gradients(self, grads_and_vars: Any, **ignored: Any) -> None:
        grads, variables = zip(*grads_and_vars, strict=True)
        self.apply(grads, variables)


class StandIn:
    """Stands in for a layer, or for the model as the `self` of its own train_step.

    All is the layer's, but for the optimizer of a model, and for layers that are called in
    inference mode. Methods of the user's run with the stand-in, so that they meet it, too.
    """

    def __init__(self, layer: keras.Layer, inference: bool, optimizer: Recorder | None = None):
        vars(self).update(_layer=layer, _inference=inference, _optimizer=optimizer)

    @property
    def __class__(self) -> type:  # for `super()` and isinstance
        return type(self._layer)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self._inference and options.get("training"):
            options["training"] = False
        return self._layer(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer" and self._optimizer is not None:
            return self._optimizer
        found = getattr(self._layer, name)
        method = getattr_static(type(self._layer), name, None)
        method = getattr(method, "python_function", method)  # of a tf.function
        if isinstance(method, FunctionType) and method.__module__.split(".")[0] != "keras":
            return MethodType(method, self)
        return self._stands_in(found) if self._inference else found

    def _stands_in(self, found: Any) -> Any:
        if isinstance(found, keras.Layer):
            return StandIn(found, True)
        if isinstance(found, list | tuple) and any(isinstance(x, keras.Layer) for x in found):
            return [self._stands_in(x) for x in found]
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._layer, name, value)


def loss_and_gradients(
    model: keras.Model, batch: Any, loss_scale: Any, inference: bool = False
) -> tuple[Any, list]:
    """What `train_step` says is the loss of a batch, and loss_scale * what it would apply.

    The model's metrics hold the numbers of this batch afterwards. `inference`: layers that it calls
    with training=True compute as with training=False.
    """
    recorder = Recorder(model, loss_scale)
    step = type(model).train_step
    step = getattr(step, "python_function", step)  # of a tf.function, whose tensors are its own
    model.reset_metrics()
    logs = step(StandIn(model, inference, recorder), batch)
    if recorder.gradients is None:
        raise complain(model, "applies no gradients by the compiled optimizer")
    if not isinstance(logs, dict) or "loss" not in logs:
        raise complain(model, "returns no 'loss'")
    gradients = recorder.gradients
    if not recorder.scaled:
        gradients = [g if g is None else tf.math.scalar_mul(loss_scale, g) for g in gradients]
    return tf.convert_to_tensor(logs["loss"]), gradients


def check(model: keras.Model, parameters: np.ndarray, batch: Batch, shared: bool) -> None:
    """Raise ValueError if gradients of parts of a batch do not add up to the whole batch's.

    Layers are in inference mode meanwhile: masks of dropout would differ between whole and parts.
    The caller restores what else the step changes (`metrics.unchanged`).

    Args:
        parameters: The memory of the model's trainable weights, which is restored.
        batch: Inputs, targets and weights of at least two samples; () if there are none.
        shared: Whether ranks share batches. If not, only the weights are checked, which the step
            must leave alone.
    """
    data, weights = Data(*batch), [v.numpy() for v in model.trainable_variables]
    one = tf.constant(1.0, model.trainable_variables[0].dtype)

    def gradient(samples: slice) -> np.ndarray:
        given = keras.tree.map_structure(tf.constant, data.take(samples))
        found = loss_and_gradients(model, packed(*given), one, inference=True)[1]
        own = zip(model.trainable_variables, found, strict=True)
        parts = [tf.zeros_like(v.value) if g is None else tf.convert_to_tensor(g) for v, g in own]
        return np.concatenate([np.asarray(p, np.float64).ravel() for p in parts])

    whole = gradient(slice(None))
    after = [v.numpy() for v in model.trainable_variables]
    if any((a != b).any() for a, b in zip(weights, after, strict=True)):
        raise complain(model, "changes weights without the compiled optimizer")
    if not shared or len(data) < 2:
        return
    halves = {layer.compute_dtype for layer in model._flatten_layers()} & {"float16", "bfloat16"}
    near = NEAR_HALF if halves else NEAR
    if not _alike(whole, gradient(slice(None)), near):
        raise complain(model, "draws random numbers, so it can't be tried out for several ranks")
    if not _adds_up(gradient, len(data), near):
        raise complain(model, "has gradients of two parts of a batch that do not add up to it")
    before = parameters.copy()
    try:
        for factor in LARGER:
            parameters[:] = before * before.dtype.type(factor)
            if np.isfinite(gradient(slice(None))).all():
                if not _adds_up(gradient, len(data), near):
                    raise complain(model, "clips gradients or changes them otherwise")
                break
    finally:
        parameters[:] = before


def _adds_up(gradient: Callable[[slice], np.ndarray], samples: int, near: float) -> bool:
    """Whether the gradients of two parts of the batch add up to that of all its samples."""
    half = samples // 2
    first, second = gradient(slice(0, half)), gradient(slice(half, None))
    parts = (half * first + (samples - half) * second) / samples
    return _alike(gradient(slice(None)), parts, near)


def _alike(one: np.ndarray, other: np.ndarray, near: float) -> bool:
    return bool(np.abs(one - other).max() <= near * np.abs(one).max())
