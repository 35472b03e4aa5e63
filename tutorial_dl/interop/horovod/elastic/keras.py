"""States with the variables of TensorFlow, or of a Keras model; callbacks for `model.fit`."""

import weakref
from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as _trainer

from ..gradients import key
from ..objects import broadcast_variables
from ..optimizer import reducer_of
from .running import ObjectState


class TensorFlowState(ObjectState):
    """A state of tf.Variables or keras.Variables, and of objects.

    Args:
        variables: list of variables.
        session: accepted for scripts of TensorFlow 1, must be None.
        objects: see `ObjectState`.
    """

    def __init__(self, variables: Iterable | None = None, session=None, **objects):
        if variables is None or session is not None:
            raise ValueError("variables must be a list: TensorFlow 2 has no list of all of them")
        self.variables = list(variables)
        super().__init__(**objects)
        self._keep()

    def saved(self) -> list:
        """The variables to keep."""
        return self.variables

    def shared(self) -> list:
        """The variables that are equal on all ranks."""
        return self.variables

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        for variable, value in self._values:
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self.shared(), 0)
        self._keep()
        super().sync()

    def _keep(self) -> None:
        self._values = [(v, np.array(tf.convert_to_tensor(v))) for v in self.saved()]


class TensorFlowKerasState(TensorFlowState):
    """A state of a Keras model and its optimizer, and of objects.

    Restoring takes back random seeds, too; they, and local variables of a Partial...Optimizer,
    stay each rank's own.

    Args:
        model: a model that has been built.
        optimizer: its optimizer, if the model was not compiled with it.
        backend: accepted, without effect.
        objects: see `ObjectState`.
    """

    def __init__(self, model, optimizer=None, backend=None, **objects):
        if not model.built:
            raise ValueError("the model must be built first: call model.build(input_shape)")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is None:
            raise ValueError("optimizer is missing: compile the model with it, or give it here")
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__([], **objects)

    def saved(self) -> list:
        return _each_once([*self.model.variables, *self.optimizer.variables])

    def shared(self) -> list:
        reducer = reducer_of(self.optimizer)
        local = reducer.local if reducer else ()
        both = _each_once([*self.model.weights, *self.optimizer.variables])
        return [v for v in both if key(v) not in local]


KerasState = TensorFlowKerasState


def _each_once(variables: list) -> list:
    return list({key(v): v for v in variables}.values())


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state after every `batches_per_commit` batches, and after every epoch.

    Put it after the callbacks that update the state.
    """

    def __init__(self, state, batches_per_commit: int = 1):
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit must be at least 1, got {batches_per_commit}")
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches = 0  # since the last commit

    def on_train_begin(self, logs=None):
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == self.batches_per_commit:
            self.batches = 0
            self.state.commit()

    def on_epoch_end(self, epoch, logs=None):
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Sets `state.batch` to the number of batches done in this epoch; 0 when it ends.

    If `fit` begins with `state.batch` above 0, its first epoch is so many batches shorter.
    """

    def __init__(self, state):
        super().__init__()
        self.state, self.done, self.steps = state, 0, None
        _note_iterators()

    def on_train_begin(self, logs=None):
        # `fit` has just made it. Validation makes others later.
        self.iterator = _iterators[-1]()
        self.done, self.steps = self.state.batch, self.iterator.num_batches
        self.given = self.iterator.steps_per_epoch

    def on_epoch_begin(self, epoch, logs=None):
        if self.done and self.steps:
            self.iterator.steps_per_epoch = max(1, self.steps - self.done)

    def on_train_batch_end(self, batch, logs=None):
        self.state.batch = self.done + batch + 1

    def on_epoch_end(self, epoch, logs=None):
        self.iterator.steps_per_epoch = self.given
        self.state.batch = self.done = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Sets `state.epoch` to the number of epochs done, also those before the ranks regrouped.

    So `fit` is called with epochs=all_of_them - state.epoch, or with initial_epoch=state.epoch.
    """

    def __init__(self, state):
        super().__init__()
        self.state, self.before = state, None

    def on_train_begin(self, logs=None):
        self.before = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.before is None:  # Keras counts from 0, or from its argument initial_epoch
            self.before = self.state.epoch - epoch

    def on_epoch_end(self, epoch, logs=None):
        self.state.epoch = self.before + epoch + 1


_iterators: list[weakref.ref] = []  # the last one that Keras made


def _note_iterators() -> None:
    """Note the iterators that Keras makes; a callback has no other way to shorten an epoch."""
    kind = _trainer.TFEpochIterator
    if getattr(kind, "noted", False):
        return
    before = kind.__init__

    def __init__(self, *args, **kwargs):
        before(self, *args, **kwargs)
        _iterators[:] = [weakref.ref(self)]

    kind.__init__, kind.noted = __init__, True
