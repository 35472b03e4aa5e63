"""Keras models with a `train_step` of their own: the gradients that it applies, not applied.

While the step runs, the model has another `optimizer`, which takes the gradients that are handed to
`apply`, and leaves the weights alone; the strategy then updates them. On one rank that is what
Keras does. If several ranks share a batch, the mean of their gradients must be the gradient of the
whole batch. No one can tell from the code of a `train_step`, so it is tried out on a few samples
(`check`) as a loss is (try_out.py), at the present gradient, and at one that is made many times as
large: gradients that are clipped do not grow, or do not add up there. What fails, such as a
contrastive loss or clipping within `train_step`, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import getattr_static
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from tutorial_dl.data.dataset import Batch, Data
from tutorial_dl.replica.keras.metrics import packed, states_of, unchanged
from tutorial_dl.replica.keras.try_out import TryOut, statistics_kept
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf

# What makes gradients large: factors of them within activations, and of weights; the first that is
# found to do so, and gives finite ones, counts.
FACTORS = (2.0**20, 2.0**10, 2.0**5, 2.0)
OF_WEIGHTS = (64.0, 16.0, 4.0)
LARGE = 16  # times the gradient at the start
REPEATED = 4  # times the samples; a sum over samples would be so much larger


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
    """Stands in for the model as the `self` of its own train_step.

    All is the model's; but its methods that are a `tf.function` keep the tensors of their first
    graph, so they are called as they were before `tf.function`.
    """

    def __init__(self, model: keras.Model) -> None:
        vars(self)["_model"] = model

    @property
    def __class__(self) -> type:  # for `super()` and isinstance
        return type(self._model)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._model(*args, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr_static(type(self._model), name, None)
        method = getattr(method, "python_function", method)
        if isinstance(method, FunctionType) and method.__module__.split(".")[0] != "keras":
            return MethodType(method, self)
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)


def loss_and_gradients(model: keras.Model, batch: Any, loss_scale: Any) -> tuple[Any, list]:
    """What `train_step` says is the loss of a batch, and loss_scale * what it would apply.

    The model's metrics hold the numbers of this batch afterwards.
    """
    recorder = Recorder(model, loss_scale)
    step = type(model).train_step
    step = getattr(step, "python_function", step)  # of a tf.function, whose tensors are its own
    model.reset_metrics()
    model.optimizer = recorder  # also for what layers, properties and other functions read of it
    try:
        logs = step(StandIn(model), batch)
    finally:
        model.optimizer = recorder.optimizer
    if recorder.gradients is None:
        raise complain(model, "applies no gradients by the compiled optimizer")
    if not isinstance(logs, dict) or "loss" not in logs:
        raise complain(model, "returns no 'loss'")
    gradients = recorder.gradients
    if not recorder.scaled:
        gradients = [g if g is None else tf.math.scalar_mul(loss_scale, g) for g in gradients]
    return tf.convert_to_tensor(logs["loss"]), gradients


@contextmanager
def kept(model: keras.Model) -> Iterator[None]:
    """Within, batch normalisation computes as in inference; afterwards states are as before."""
    trained, eager = model.trainable_variables, tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # or a layer's graph would keep what is tried out
    try:
        with unchanged(model), statistics_kept(model):
            for variable in trained:
                variable.trainable = True
            yield
    finally:
        tf.config.run_functions_eagerly(eager)


def check(model: keras.Model, parameters: np.ndarray, batch: Batch, shared: bool) -> None:
    """Raise ValueError if gradients of parts of a batch do not add up to the whole batch's.

    Args:
        parameters: The memory of the model's trainable weights, which is restored.
        batch: Inputs, targets and weights of at least two samples; () if there are none.
        shared: Whether ranks share batches. If not, only the weights are checked, which the step
            must leave alone.
    """
    tried = GradientTryOut(model, batch)
    start = tried.whole()
    if not shared or tried.n < 2:
        return
    if not tried._alike(start, tried.whole()):
        raise complain(model, "draws random numbers, so it can't be tried out for several ranks")
    if not tried.adds_up():
        raise complain(model, "has gradients of two parts of a batch that do not add up to it")
    least = LARGE * np.abs(start).max()
    for larger in larger_gradients(model, parameters):
        with larger:
            found = tried.whole()
            if np.isfinite(found).all() and np.abs(found).max() > least:
                if tried.adds_up():
                    return
                break
    raise complain(model, "clips gradients or changes them otherwise")


class GradientTryOut(TryOut):
    """Tries out the gradients that a train_step applies.

    Attributes:
        draws: Whether the step has drawn random numbers by generators of Keras.
    """

    draws = False
    _largest = 0.0  # entry of a gradient by its samples; parts of a batch may cancel out

    def __init__(self, model: keras.Model, batch: Batch) -> None:
        super().__init__(model, batch)
        self._seeds = [v for v in states_of(model) if v.path.endswith("seed_generator_state")]
        kind = keras.layers.SpectralNormalization  # it assigns its kernel, and may
        own = {id(x.kernel) for x in model._flatten_layers() if isinstance(x, kind)}
        self._weights = [v for v in model.trainable_variables if id(v) not in own]

    def gradient(self, batch: Batch) -> np.ndarray:
        """What the step applies for a batch, as one vector."""
        one = tf.constant(1.0, self.model.trainable_variables[0].dtype)
        weights, seeds = ([v.numpy() for v in of] for of in (self._weights, self._seeds))
        with kept(self.model):
            given = packed(*keras.tree.map_structure(tf.constant, batch))
            found = loss_and_gradients(self.model, given, one)[1]
            own = zip(self.model.trainable_variables, found, strict=True)
            parts = [tf.zeros_like(v) if g is None else tf.convert_to_tensor(g) for v, g in own]
            self.draws = _changed(self._seeds, seeds)
        if _changed(self._weights, weights):
            raise complain(self.model, "changes weights without the compiled optimizer")
        gradient = np.concatenate([np.asarray(p, np.float64).ravel() for p in parts])
        self._largest = max(self._largest, len(Data(*batch)) * np.abs(gradient).max())
        return gradient

    def whole(self) -> np.ndarray:
        return self.gradient(self.data.take(slice(None)))

    def adds_up(self) -> bool:
        """Whether the gradient is a mean over samples; see try_out.py."""
        self._largest = 0.0
        if not self.draws:
            return self.is_mean(lambda part: self.gradient(self.data.take(part)))
        # As for a loss, other masks are drawn for parts.
        if self.mixes(self.gradient):
            return False
        places = np.tile(np.arange(self.n), REPEATED)
        several = self.gradient(self.data.take(places))
        return bool(np.linalg.norm(several) < REPEATED / 2 * np.linalg.norm(self.whole()))

    def _alike(self, one: np.ndarray, other: np.ndarray) -> bool:
        return bool(np.abs(one - other).max() <= self.near * self._largest)


def _changed(variables: list, before: list[np.ndarray]) -> bool:
    return any((v.numpy() != old).any() for v, old in zip(variables, before, strict=True))


def larger_gradients(
    model: keras.Model, parameters: np.ndarray
) -> Iterator[AbstractContextManager]:
    """Ways to give a model larger gradients, each for the duration of a `with`.

    Gradients are multiplied on their way through activations, the last one or all, which leaves
    what the model computes as it is. Else weights are.
    """
    layers = [x for x in model._flatten_layers() if callable(vars(x).get("activation"))]
    layers = [x for x in layers if not isinstance(x.activation, keras.Layer)]
    for chosen in (layers[-1:], layers):
        for factor in FACTORS:
            yield amplified(chosen, factor)
    for factor in OF_WEIGHTS:
        yield multiplied(parameters, factor)


@contextmanager
def amplified(layers: list[keras.Layer], factor: float) -> Iterator[None]:
    @tf.custom_gradient
    def same(x: Any) -> tuple:
        return tf.identity(x), lambda gradient: gradient * tf.cast(factor, gradient.dtype)

    before = [layer.activation for layer in layers]
    try:
        for layer, activation in zip(layers, before, strict=True):
            layer.activation = lambda x, of=activation: of(same(x))
        yield
    finally:
        for layer, activation in zip(layers, before, strict=True):
            layer.activation = activation


@contextmanager
def multiplied(parameters: np.ndarray, factor: float) -> Iterator[None]:
    before = parameters.copy()
    parameters *= parameters.dtype.type(factor)
    try:
        yield
    finally:
        parameters[:] = before
