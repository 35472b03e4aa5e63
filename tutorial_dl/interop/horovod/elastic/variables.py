"""States with the variables of TensorFlow, or of a Keras model and its optimizer."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from ..gradients import key
from ..objects import broadcast_variables
from ..optimizer import reducer_of
from .state import ObjectState


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
