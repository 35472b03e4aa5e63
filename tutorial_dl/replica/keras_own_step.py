"""Keras models with a `train_step` of their own: the gradients that it applies, not applied.

A stand-in for the model's optimizer takes the gradients that `train_step` hands to `apply`, and
leaves the weights alone; the strategy then updates them. On one rank that is what Keras does. If
several ranks share a batch, the mean of their gradients must be the gradient of the whole batch.
No one can tell from the code of a `train_step`, so it is tried out on a few samples (`check`):

    whole batch = its parts:  g(a + b) = (n_a g(a) + n_b g(b)) / (n_a + n_b)
    nothing is clipped:       c times the gradient of the tape makes c times what is applied

What fails, such as a contrastive loss or clipping within `train_step`, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from tutorial_dl.data.dataset import Batch, Data
from tutorial_dl.replica.keras_metrics import packed
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf

FACTOR = 1024.0  # for the gradients of the tape; a power of 2 changes no digit
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


def loss_and_gradients(model: keras.Model, batch: Any, loss_scale: Any) -> tuple[Any, list]:
    """What `train_step` says is the loss of a batch, and loss_scale * what it would apply.

    The model's metrics hold the numbers of this batch afterwards.
    """
    recorder = Recorder(model, loss_scale)
    step = type(model).train_step
    step = getattr(step, "python_function", step)  # of a tf.function, whose tensors are its own
    model.reset_metrics()
    object.__setattr__(model, "optimizer", recorder)
    try:
        logs = step(model, batch)
    finally:
        object.__setattr__(model, "optimizer", recorder.optimizer)
    if recorder.gradients is None:
        raise complain(model, "applies no gradients by the compiled optimizer")
    if not isinstance(logs, dict) or "loss" not in logs:
        raise complain(model, "returns no 'loss'")
    gradients = recorder.gradients
    if not recorder.scaled:
        gradients = [g if g is None else tf.math.scalar_mul(loss_scale, g) for g in gradients]
    return tf.convert_to_tensor(logs["loss"]), gradients


def check(model: keras.Model, batch: Batch, shared: bool) -> None:
    """Raise ValueError if gradients of parts of a batch do not add up to the whole batch's.

    Layers are in inference mode meanwhile: masks of dropout would differ between whole and parts.
    The caller restores what else the step changes (`keras_metrics.unchanged`).

    Args:
        batch: Inputs, targets and weights of at least two samples; () if there are none.
        shared: Whether ranks share batches. If not, only the weights are checked, which the step
            must leave alone.
    """
    data, weights = Data(*batch), [v.numpy() for v in model.trainable_variables]
    one = tf.constant(1.0, model.trainable_variables[0].dtype)

    def gradient(samples: slice) -> np.ndarray:
        given = keras.tree.map_structure(tf.constant, data.take(samples))
        found = loss_and_gradients(model, packed(*given), one)[1]
        own = zip(model.trainable_variables, found, strict=True)
        parts = [tf.zeros_like(v.value) if g is None else tf.convert_to_tensor(g) for v, g in own]
        return np.concatenate([np.asarray(p, np.float64).ravel() for p in parts])

    half = len(data) // 2
    with inference():
        whole = gradient(slice(None))
        after = [v.numpy() for v in model.trainable_variables]
        if any((a != b).any() for a, b in zip(weights, after, strict=True)):
            raise complain(model, "changes weights without the compiled optimizer")
        if not shared or not half:
            return
        again = gradient(slice(None))
        first, second = gradient(slice(0, half)), gradient(slice(half, None))
        with larger_gradients(model, FACTOR):
            larger = gradient(slice(None))
    halves = {layer.compute_dtype for layer in model._flatten_layers()} & {"float16", "bfloat16"}
    near = NEAR_HALF if halves else NEAR

    def alike(one: np.ndarray, other: np.ndarray) -> bool:
        return bool(np.abs(one - other).max() <= near * np.abs(one).max())

    if not alike(whole, again):
        raise complain(model, "draws random numbers, so it can't be tried out for several ranks")
    parts = (half * first + (len(data) - half) * second) / len(data)
    if not alike(whole, parts):
        raise complain(model, "has gradients of two parts of a batch that do not add up to it")
    if not alike(FACTOR * whole, larger):
        raise complain(model, "clips gradients or changes them otherwise")


@contextmanager
def inference() -> Iterator[None]:
    """Within, every layer that is called with training=True computes as with training=False."""
    called = keras.layers.Layer.__call__

    def call(layer: keras.Layer, *args: Any, **options: Any) -> Any:
        if options.get("training"):
            options["training"] = False
        return called(layer, *args, **options)

    with mock.patch.object(keras.layers.Layer, "__call__", call):
        yield


@contextmanager
def larger_gradients(model: keras.Model, factor: float) -> Iterator[None]:
    """Within, a tape's gradient with respect to weights of `model` is `factor` times as large."""
    gradient, weights = tf.GradientTape.gradient, model.trainable_variables
    known = {id(one) for weight in weights for one in (weight, weight.value)}

    def larger(tape: tf.GradientTape, target: Any, sources: Any, *more: Any, **options: Any) -> Any:
        found = gradient(tape, target, sources, *more, **options)
        if not known & {id(one) for one in tf.nest.flatten(sources)}:
            return found  # such as the slopes of a gradient penalty
        return tf.nest.map_structure(
            lambda g: None if g is None else tf.math.scalar_mul(factor, g), found
        )

    with mock.patch.object(tf.GradientTape, "gradient", larger):
        yield
