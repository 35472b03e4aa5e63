"""A trained Keras model in a file: with the optimizer that has trained it, and that one's state.

Training updates weights outside of Keras, so the optimizer that a model was compiled with has no
variables (Keras warns of that when it loads the file), or it is not the one that was used. So for
the time of `save`, the model has an optimizer of Keras's with the rule, the settings and the
running averages that trained it: `fit` of the loaded model goes on where training ended.

Not so in a .h5 file, because Keras (3.15) does not build the optimizer of such a file right, and
then `fit` raises "Unknown variable".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from numba_kernels import optimizers
from numba_kernels.optimizers import Nadam, Optimizer
from tutorial_dl.replica.base import CompiledOptimizer, TrainedBy
from tutorial_dl.replica.keras.optimizers import KERNELS, ByKeras, keras

# Where Keras's optimizers keep what a kernel's slots hold, in the order of the slots; a list is
# empty if the settings need none.
SLOTS = {
    "SGD": ("momentums",),
    "Adagrad": ("_accumulators",),
    "Adadelta": ("_accumulated_grads", "_accumulated_delta_vars"),
    "RMSprop": ("_velocities", "_momentums", "_average_gradients"),
    **dict.fromkeys(("Adam", "AdamW", "Nadam"), ("_momentums", "_velocities")),
    "Lion": ("_momentums",),
}


@contextmanager
def trained_by(replica, trained: TrainedBy | None, path: Path | str) -> Iterator[None]:
    """Within, the replica's model has the optimizer of `trained`, or a new one of its own."""
    model = replica.model
    own, compiled = model.optimizer, getattr(model, "_compile_config", None)
    if Path(path).suffix == ".keras" and isinstance(own, keras.optimizers.Optimizer):
        model.optimizer = _scaled(own, _optimizer(replica, trained))
        model.optimizer.build(model.trainable_variables)
        if trained is not None:
            _fill(getattr(model.optimizer, "inner_optimizer", model.optimizer), replica, trained)
    if compiled is not None:
        config = compiled.config | {"optimizer": model.optimizer}
        model._compile_config = type(compiled)(**config)  # (.h5 takes the optimizer out of it)
    try:
        yield
    finally:
        model.optimizer = own
        if compiled is not None:
            model._compile_config = compiled


def _optimizer(replica, trained: TrainedBy | None) -> keras.optimizers.Optimizer:
    """A new optimizer of Keras's, with the rule and settings of the one that trained the model."""
    theirs = replica.model.optimizer
    theirs = getattr(theirs, "inner_optimizer", theirs)
    kind, config = type(theirs), theirs.get_config()
    if trained is None:
        return kind.from_config(config)
    ours = trained.optimizer
    if isinstance(ours, ByKeras):
        kind, config = type(ours.theirs), ours.theirs.get_config()
    elif not _is(ours, _compiled(replica)):
        if (name := _known(ours)) is None:
            return kind.from_config(config)  # Keras has no such rule (LARS, LAMB)
        kind = getattr(keras.optimizers, name)
        config = {one: getattr(ours, one) for one in KERNELS[name]}
    if not _keeps_schedule(replica, trained):
        config["learning_rate"] = ours.learning_rate
    if not isinstance(ours, ByKeras) and trained.clip_norm is not None:
        config["global_clipnorm"] = trained.clip_norm
    return kind.from_config(config)


def _compiled(replica):
    """What the model was compiled with, as a CompiledOptimizer; None if that can't be used."""
    try:
        return replica.own_optimizer()
    except ValueError:
        return None


def _is(ours: Optimizer, compiled: CompiledOptimizer | None) -> bool:
    """Whether this is the optimizer that the model was compiled with, at any learning rate."""
    return compiled is not None and ours.at_rate(0.0) == compiled.optimizer.at_rate(0.0)


def _keeps_schedule(replica, trained: TrainedBy) -> bool:
    """Whether the learning rates were those of the LearningRateSchedule that was compiled."""
    compiled = _compiled(replica)
    if trained.schedule is None or compiled is None or compiled.schedule is None:
        return False
    return str(trained.schedule) == compiled.schedule.__name__ and _is(trained.optimizer, compiled)


def _known(ours: Optimizer) -> str | None:
    """The name of Keras's class with the same rule."""
    return next((name for name in KERNELS if type(ours) is getattr(optimizers, name)), None)


def _scaled(own, optimizer):
    """`optimizer`, within Keras's loss scaling if the model's own one is."""
    if not isinstance(own, keras.optimizers.LossScaleOptimizer):
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, own.initial_scale)


def _fill(optimizer: Any, replica, trained: TrainedBy) -> None:
    """Copy the running averages and the number of updates to an optimizer that has been built."""
    ours, name = trained.optimizer, _known(trained.optimizer)
    by_keras = isinstance(ours, ByKeras)
    if trained.slots is None or not (by_keras or name):
        return
    optimizer.iterations.assign(trained.updates)
    if by_keras:
        numbers, at = np.ravel(trained.slots), 0
        known = optimizer.iterations, optimizer._learning_rate
        for variable in optimizer.variables:
            if not any(variable is one for one in known):
                size = int(np.prod(variable.shape))
                variable.assign(numbers[at : at + size].reshape(variable.shape))
                at += size
        return
    lists = [found for found in (getattr(optimizer, one) for one in SLOTS[name]) if found]
    for slot, variables in zip(trained.slots, lists, strict=True):
        for segment, variable in zip(replica.segments, variables, strict=True):
            variable.assign(segment.view(slot))
    if isinstance(ours, Nadam):
        optimizer._u_product.assign(ours.warmed_up(trained.updates)[1])
