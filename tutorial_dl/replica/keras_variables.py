"""`KerasVariables`: the weights of a Keras model in memory of ours, as two flat vectors.

Keras keeps every weight in a TensorFlow variable. Here each variable is made to alias its part of
one flat vector of ours, through DLPack, the protocol by which array libraries share memory. So an
optimizer's kernel that writes the vector changes the network without a copy. TensorFlow holds a
reference to the vector as long as one of its tensors uses it, so the memory stays valid.

This works in one direction only. A variable that TensorFlow assigns (`model.fit`, `set_weights`,
`load_weights`) gets new memory from TensorFlow. Every step checks one variable in turn and raises
an error if that has happened, instead of training a model that no longer learns.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.shared.window import aligned
from tutorial_dl.replica.base import Replica, lay_out, length
from tutorial_dl.replica.keras_checks import check_model, keras, tf

CACHE_LINE = 64  # bytes; TensorFlow only shares memory that starts at a multiple of this


class KerasVariables(Replica):
    """The vectors, state and random state of a KerasReplica; it computes nothing."""

    def __init__(self, model: keras.Model) -> None:
        check_model(model)
        self.model = model
        self._variables = list(model.trainable_weights)
        self.dtype = np.dtype(self._variables[0].dtype)
        self.segments = lay_out(
            ((v.path, tuple(v.shape)) for v in self._variables),
            align=CACHE_LINE // self.dtype.itemsize,
        )
        self._state = [
            v for v in model.non_trainable_weights if keras.backend.is_float_dtype(v.dtype)
        ]
        # Seeds are in no list of weights: layers own generators, which own a variable each.
        self._seeds = [
            v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")
        ]
        self._offsets = np.array([s.offset for s in self.segments])
        self._sizes = np.array([s.size for s in self.segments])
        parameters, gradient = (aligned(length(self.segments), self.dtype) for _ in range(2))
        for segment, variable in zip(self.segments, self._variables, strict=True):
            segment.of(parameters)[...] = variable.numpy()
        self._hold(parameters, gradient)

    def place(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        for i in range(len(self._variables)):
            self._check_alias(i, self._variables[i].value.read_value())
        super().place(parameters, gradient)

    @property
    def state(self) -> np.ndarray:
        parts = [v.numpy().ravel() for v in self._state]
        joined = np.concatenate([np.empty(0), *parts], dtype=self.dtype, casting="same_kind")
        joined.flags.writeable = False
        return joined

    @state.setter
    def state(self, values: np.ndarray) -> None:
        size = sum(int(np.prod(v.shape)) for v in self._state)
        if np.shape(values) != (size,):
            raise ValueError(f"state of shape {np.shape(values)}: expected ({size},)")
        offset = 0
        for variable in self._state:
            size = int(np.prod(variable.shape))
            variable.assign(values[offset : offset + size].reshape(variable.shape))
            offset += size

    @property
    def random(self) -> np.ndarray:
        """Seeds and counters of the model's random layers (dropout), int64; can be assigned."""
        return np.concatenate([np.empty(0, np.int64), *(v.numpy() for v in self._seeds)])

    @random.setter
    def random(self, values: np.ndarray) -> None:
        for variable, of_it in zip(self._seeds, np.reshape(values, (-1, 2)), strict=True):
            variable.assign(of_it.astype(variable.dtype))

    def _hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        super()._hold(parameters, gradient)
        views = [s.of(parameters) for s in self.segments]
        self._addresses = [v.ctypes.data for v in views]
        for i, (variable, view) in enumerate(zip(self._variables, views, strict=True)):
            variable.assign(tf.experimental.dlpack.from_dlpack(view.__dlpack__()))
            weights = variable.value.read_value()
            if "CPU" not in weights.device:
                raise RuntimeError(
                    f"weights '{variable.path}' must be in main memory, got {weights.device}: "
                    "set CUDA_VISIBLE_DEVICES=-1 before TensorFlow is imported"
                )
            self._check_alias(i, weights)

    def _check_alias(self, i: int, weights: tf.Tensor) -> None:
        """Raise unless the i-th variable, whose value is `weights`, lies in `parameters`."""
        if self._sizes[i] and address_of(weights) != self._addresses[i]:
            raise RuntimeError(
                f"weights '{self._variables[i].path}' no longer lie in the replica's parameters: "
                "TensorFlow assigned them (fit, set_weights, load_weights?). Assign weights first, "
                "then make a new KerasReplica"
            )


def address_of(tensor: tf.Tensor) -> int:
    """The memory address of a tensor's numbers."""
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]
