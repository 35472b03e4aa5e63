"""The optimizer that a Keras model was compiled with: as one of ours, or as Keras applies it.

Most of Keras's rules have a kernel here, with the same formula and the same hyper-parameters; so a
compiled Adam(0.05) becomes our Adam(0.05). Any other (Ftrl, amsgrad, a class of the user's) is
applied by Keras itself, on every rank after the gradients were reduced, as in Horovod (Sergeev and
Del Balso, arXiv 1802.05799, section 3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numba_kernels import optimizers
from numba_kernels.optimizers import Optimizer, State, muon
from numba_kernels.shared.window import aligned
from tutorial_dl.replica.base import CompiledOptimizer
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf

# Keras's classes that have a kernel here, and their hyper-parameters beside the learning rate
KERNELS = {
    "SGD": ("momentum", "nesterov"),
    "Adagrad": ("initial_accumulator_value", "epsilon"),
    "Adadelta": ("rho", "epsilon"),
    "RMSprop": ("rho", "momentum", "epsilon", "centered"),
    "Adam": ("beta_1", "beta_2", "epsilon"),
    "AdamW": ("beta_1", "beta_2", "epsilon", "weight_decay"),
    "Nadam": ("beta_1", "beta_2", "epsilon"),
    "Lion": ("beta_1", "beta_2", "weight_decay"),
    "Adafactor": ("beta_2_decay", "epsilon_1", "epsilon_2", "clip_threshold"),
    "Muon": (
        *("momentum", "nesterov", "weight_decay", "rms_rate"),
        *("adam_beta_1", "adam_beta_2", "epsilon", "adam_weight_decay"),
    ),
}
# Settings that the kernels lack
OTHERS = ("amsgrad", "clipnorm", "clipvalue", "gradient_accumulation_steps")
# Settings of Muon's that are no arguments here; Keras before 3.12 has other ones
CONSTANTS = {
    "muon_a": muon.A, "muon_b": muon.B, "muon_c": muon.C, "ns_steps": muon.ROUNDS,
    "adam_lr_ratio": 1,
}  # fmt: skip


def compiled_optimizer(model: keras.Model, theirs: Any) -> CompiledOptimizer | None:
    """The Keras optimizer `theirs`, which is to train `model`; None if it is no optimizer."""
    if isinstance(theirs, keras.optimizers.LossScaleOptimizer):
        theirs = theirs.inner_optimizer  # loss scaling is the strategy's (loss_scale.py)
    if not isinstance(theirs, keras.optimizers.Optimizer):
        return None
    _refuse(model, theirs)
    config, schedule = theirs.get_config(), _schedule(theirs)
    rmsprop = keras.optimizers.RMSprop
    default = type(theirs) is rmsprop and _same(config, rmsprop().get_config())
    if default and getattr(model, "strategy_chooses", False):
        return None  # one of ours (models/keras_models.py)
    rate = float(theirs.learning_rate) if schedule is None else schedule(0)
    clip_norm = config.get("global_clipnorm")
    ours = _with_a_kernel(model, theirs, config, rate)
    if ours is None:
        clip_norm, ours = None, ByKeras.compiled(model, theirs, rate)
    if theirs.use_ema:
        keep, overwrite = theirs.ema_momentum, theirs.ema_overwrite_frequency
        ours = optimizers.Averaged(ours, keep, overwrite=overwrite or None, at_end=True)
    return CompiledOptimizer(ours, schedule, clip_norm, type(theirs).__name__, default)


def _same(one: dict, other: dict) -> bool:
    return {**one, "name": ""} == {**other, "name": ""}


def _schedule(theirs: keras.optimizers.Optimizer) -> Callable[[int], float] | None:
    given = theirs._learning_rate

    def by_step(step: int) -> float:
        return float(given(step))

    def called(step: int) -> float:
        return float(given())

    if isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
        # Checkpoints and results name a schedule by this.
        by_step.__name__ = f"{type(given).__name__}({_json(given.get_config())})"
        return by_step
    if callable(given) and not isinstance(given, keras.Variable):
        called.__name__ = getattr(given, "__name__", type(given).__name__)
        return called
    return None


def _json(config: dict) -> str:
    return json.dumps(config, sort_keys=True, default=repr)


def _with_a_kernel(model, theirs, config: dict, rate: float) -> Optimizer | None:
    """Our optimizer that does what `theirs` does; None if there is none."""
    classes = (n for n in KERNELS if type(theirs) is getattr(keras.optimizers, n, None))
    kind = next(classes, None)
    decays = config.get("weight_decay") or config.get("adam_weight_decay")
    if kind == "Adam" and decays:
        kind = "AdamW"
    if kind is None or any(config.get(name) for name in OTHERS):
        return None
    names = KERNELS[kind]
    if decays and ("weight_decay" not in names or _without_decay(model, theirs)):
        return None
    values = {name: config[name] or 0.0 for name in names}
    if kind == "Muon":
        if any(config[name] != value for name, value in CONSTANTS.items()):
            return None
        words = list(config["exclude_layers"]) + ["(?i)embedding"] * config["exclude_embeddings"]
        values |= {"rms_rate": config["rms_rate"], "adam": tuple(
            one.path for one in model.trainable_variables
            if len(one.shape) != 2 or any(re.search(word, one.path) for word in words)
        )}  # fmt: skip
    try:
        return getattr(optimizers, kind)(rate, **values)
    except ValueError:  # such as epsilon = 0
        return None


def _without_decay(model, theirs) -> list[int]:
    """The weights that do not decay, by number: those that the user has excluded, or no loss uses.

    Keras matches patterns with the names of TensorFlow's variables, which are paths.
    """
    used = _used(model)
    return [
        i
        for i, weight in enumerate(model.trainable_variables)
        if id(weight) not in used or not theirs._use_weight_decay(weight.value)
    ]


def _used(model) -> set[int]:
    """The ids of weights that have a gradient: not those behind outputs without a loss alone."""
    weights, losses = model.trainable_variables, model.loss
    outputs = getattr(model, "outputs", None) or []
    if isinstance(losses, dict):
        losses = [losses.get(name) for name in model.output_names]
    if isinstance(losses, list | tuple) and None in losses and len(losses) == len(outputs):
        kept = [one for one, loss in zip(outputs, losses, strict=True) if loss is not None]
        if kept and not model.losses:
            weights = keras.Model(model.inputs, kept).trainable_variables
    return set(map(id, weights))


def _refuse(model, theirs) -> None:
    """Raise ValueError if this optimizer can't be used outside of `fit`."""
    kind = type(theirs)
    if hasattr(theirs, "optimizers_and_layers") or kind.__name__ == "MultiOptimizer":
        raise ValueError(
            f"model '{model.name}' was compiled with a {kind.__name__}, which has no learning rate "
            "of its own: compile it with one optimizer for all weights"
        )
    own = [one for one in kind.__mro__ if one.__module__.split(".")[0] != "keras"]
    if any("__init__" in vars(one) and "get_config" not in vars(one) for one in own[:-1]):
        raise ValueError(
            f"optimizer {kind.__name__} has an __init__ of its own and no get_config, so it can't "
            "be copied: add get_config, which returns the arguments of __init__"
        )
    if getattr(theirs, "horovod", None) is not None:
        raise ValueError(
            f"model '{model.name}' was compiled with hvd.DistributedOptimizer, which reduces "
            "gradients a second time: compile it with the optimizer inside, or call model.fit"
        )


@dataclass(frozen=True)
class ByKeras(Optimizer):
    """An optimizer that Keras applies to copies of the weights, all of them on every rank.

    Its state holds all numbers of the Keras optimizer, so checkpoints do, too.
    """

    learning_rate: float
    kind: str
    settings: str  # JSON
    theirs: Any = field(repr=False, compare=False)
    weights: tuple = field(repr=False, compare=False)  # of the model
    undecayed: tuple[int, ...] = ()

    undivided = True

    @classmethod
    def compiled(
        cls, model: keras.Model, theirs: keras.optimizers.Optimizer, rate: float
    ) -> ByKeras:
        settings = theirs.get_config()
        averages = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
        for name in ("learning_rate", "name", "loss_scale_factor", *averages):  # these may differ
            settings.pop(name, None)
        undecayed = tuple(_without_decay(model, theirs))
        weights = tuple(model.trainable_variables)
        return cls(rate, type(theirs).__name__, _json(settings), theirs, weights, undecayed)

    @property
    def name(self) -> str:
        return self.kind

    @property
    def in_words(self) -> str:
        return f"Keras's {self.kind}"

    def init(self, n: int, dtype=np.float32, segments=None, first: int = 0) -> State:
        settings = self.theirs.get_config()
        settings |= {"learning_rate": 1.0, "loss_scale_factor": None, "use_ema": False}
        return KerasState(self, type(self.theirs).from_config(settings), n, dtype, segments)

    def update(self, parameters: np.ndarray, gradient: np.ndarray, state: KerasState) -> None:
        state.apply(self.learning_rate, parameters, gradient)


class KerasState(State):
    """The state of a ByKeras: `slots`, shape (k, n), holds Keras's numbers in their order.

    These are any number of arrays of any shape; the rest of `slots` is zero.
    """

    def __init__(self, of: ByKeras, optimizer, n: int, dtype, segments) -> None:
        self.segments = tuple(segments)
        # With the present values and names, as some rules begin with these, or go by names.
        self._weights = [_copy(weight) for weight in of.weights]
        if of.undecayed:
            optimizer.exclude_from_weight_decay([self._weights[i] for i in of.undecayed])
        optimizer.build(self._weights)
        self._optimizer, rate = optimizer, optimizer._learning_rate
        self._rate_type = rate.dtype
        self._numbers = [
            v for v in optimizer.variables if v is not optimizer._iterations and v is not rate
        ]
        values = [np.ravel(v.numpy()) for v in self._numbers]
        joined = np.concatenate([np.zeros(0), *values])
        slots = aligned(-(-joined.size // n) * n, np.dtype(dtype))
        slots[: joined.size] = joined
        super().__init__(0, slots.reshape(-1, n), np.array([[0, n, 0]]), 0)
        self._graph = tf.function(self._step, autograph=False)

    def apply(self, rate: float, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """One update of `parameters` in place."""
        if not parameters.flags.c_contiguous:
            raise ValueError("parameters must be contiguous")
        given = (parameters, gradient, self.slots.ravel())
        # (As tensors: a Python number would be part of the graph, so each step would trace anew.)
        numbers = tf.constant(rate, self._rate_type), tf.constant(self.step, tf.int64)
        new = self._graph(*numbers, *map(tf.constant, given))
        weights, numbers = (one.numpy() for one in new)
        at = 0
        for segment in self.segments:
            segment.view(parameters).ravel()[:] = weights[at : at + segment.size]
            at += segment.size
        self.slots.ravel()[: numbers.size] = numbers
        self.step += 1

    def _step(self, rate, step, parameters, gradient, slots) -> list[tf.Tensor]:
        """[the new weights, the new numbers], each joined; a graph of TensorFlow's."""
        optimizer = self._optimizer
        optimizer._learning_rate.assign(rate)
        optimizer._iterations.assign(tf.cast(step, optimizer._iterations.dtype))
        for copy, segment in zip(self._weights, self.segments, strict=True):
            copy.assign(_part(parameters, segment.offset, copy))
        at = 0
        for variable in self._numbers:
            variable.assign(_part(slots, at, variable))
            at += _size(variable)
        gradients = zip(self.segments, self._weights, strict=True)
        optimizer.apply([_part(gradient, one.offset, copy) for one, copy in gradients])
        return [_joined(self._weights, parameters.dtype), _joined(self._numbers, slots.dtype)]


def _copy(weight: keras.Variable) -> keras.Variable:
    with ExitStack() as scopes:  # which make the path
        for name in weight.path.split("/")[:-1]:
            scopes.enter_context(keras.name_scope(name))
        return keras.Variable(weight.numpy(), dtype=weight.dtype, name=weight.name)


def _size(variable) -> int:
    return int(np.prod(variable.shape))


def _part(vector: tf.Tensor, offset: int, like) -> tf.Tensor:
    part = tf.reshape(vector[offset : offset + _size(like)], like.shape)
    return tf.cast(part, like.dtype)


def _joined(variables: list, dtype) -> tf.Tensor:
    flat = [tf.reshape(tf.cast(v.value, dtype), (-1,)) for v in variables]
    return tf.concat([tf.zeros(0, dtype), *flat], 0)
