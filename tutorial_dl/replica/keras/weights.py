"""`KerasWeights`: the weights of a Keras model in memory of ours, as two flat vectors.

Keras keeps every weight in a TensorFlow variable. Here tensors alias the parts of one flat vector
of ours, through DLPack, the protocol by which array libraries share memory. So an optimizer's
kernel that writes the vector changes the network without a copy. TensorFlow holds a reference to
the vector as long as one of its tensors uses it, so the memory stays valid.

A step computes on these tensors (step.py). The model's variables are assigned them once, so that
the user's model always has the present weights: for `predict` and `evaluate`, in a callback, and in
steps by variables. This works in one direction only. A variable that TensorFlow assigns
(`model.fit`, `set_weights`, `load_weights`) gets new memory from TensorFlow. Every step checks one
variable in turn and raises an error if that has happened, instead of training a model other than
the user's.
"""

from pathlib import Path
from typing import Any

import numpy as np

from numba_kernels.shared.window import aligned
from tutorial_dl.replica.base import Replica, TrainedBy, Traits, lay_out, length, written
from tutorial_dl.replica.joining import join
from tutorial_dl.replica.keras.graphs import keras, tf
from tutorial_dl.tensorflow_chatter import quiet

CACHE_LINE = 64  # bytes; TensorFlow only shares memory that starts at a multiple of this


class KerasWeights(Replica):
    """The vectors, state and random state of a Keras model; it computes nothing.

    Attributes:
        model: The Keras model.
        variables: Its trainable weights, in the order of `segments`.
        tensors: The same as tensors, in the memory of `parameters`.
        state_variables: Weights that are not trained, but averaged.
        seed_variables: Of the model's generators.
    """

    gradient_is_finite = True

    def __init__(self, model: keras.Model) -> None:
        check_model(model)
        self.model = model
        self.variables = list(model.trainable_weights)
        self.dtype = np.dtype(self.variables[0].dtype)
        self.segments = lay_out(
            ((v.path, tuple(v.shape)) for v in self.variables),
            align=CACHE_LINE // self.dtype.itemsize,
        )
        self.state_variables = [
            v for v in model.non_trainable_weights if keras.backend.is_float_dtype(v.dtype)
        ]
        # Seeds are in no list of weights: layers own generators, which own a variable each.
        self.seed_variables = [
            v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")
        ]
        self._constraints = [(s, v) for s, v in self._pairs() if v.constraint is not None]
        self.traits = Traits(
            saved_as=(".keras", ".h5"), constrained=bool(self._constraints), checks_gradient=True
        )
        self.offsets = np.array([s.offset for s in self.segments])
        self.sizes = np.array([s.size for s in self.segments])
        self._looked_after = 0
        parameters, gradient = (aligned(length(self.segments), self.dtype) for _ in range(2))
        for segment, variable in self._pairs():
            segment.view(parameters)[...] = variable.numpy()
        self._hold(parameters, gradient)

    def _pairs(self) -> zip:
        return zip(self.segments, self.variables, strict=True)

    def constrain(self, parameters: np.ndarray) -> None:
        """Apply the constraints of the layers' weights (`kernel_constraint`), as Keras does."""
        for segment, variable in self._constraints:
            weights = segment.view(parameters)
            weights[...] = variable.constraint(tf.constant(weights))

    def place(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        for i in range(len(self.variables)):
            self._check_alias(i)
        super().place(parameters, gradient)

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """As `model.set_weights`, which would give the weights other memory."""
        places = {id(variable): segment for segment, variable in self._pairs()}
        for variable, value in zip(self.model.weights, weights, strict=True):
            if id(variable) in places:
                places[id(variable)].view(self.parameters)[...] = value
            else:
                variable.assign(value)

    def save(self, path: Path | str, trained: TrainedBy | None = None) -> None:
        """Save the Keras model, for `keras.saving.load_model`, with what has trained it."""
        from tutorial_dl.replica.keras.saving import trained_by

        with written(self, path) as part, quiet(), trained_by(self, trained, path):
            self.model.save(part)

    @property
    def state(self) -> np.ndarray:
        parts = [v.numpy().ravel() for v in self.state_variables]
        joined = np.concatenate([np.empty(0), *parts], dtype=self.dtype, casting="same_kind")
        joined.flags.writeable = False
        return joined

    @state.setter
    def state(self, values: np.ndarray) -> None:
        size = sum(int(np.prod(v.shape)) for v in self.state_variables)
        if np.shape(values) != (size,):
            raise ValueError(f"state of shape {np.shape(values)}: expected ({size},)")
        offset = 0
        for variable in self.state_variables:
            size = int(np.prod(variable.shape))
            variable.assign(values[offset : offset + size].reshape(variable.shape))
            offset += size

    @property
    def random(self) -> np.ndarray:
        """Seeds and counters of the model's random layers (dropout), int64; can be assigned."""
        return np.concatenate([np.empty(0, np.int64), *(v.numpy() for v in self.seed_variables)])

    @random.setter
    def random(self, values: np.ndarray) -> None:
        for variable, of_it in zip(self.seed_variables, np.reshape(values, (-1, 2)), strict=True):
            variable.assign(of_it.astype(variable.dtype))

    def _join(self, gradients: list, factor: float = 1.0, apart: tuple = (0, 0)) -> np.ndarray:
        """Copy the arrays' gradients, times `factor`, into the flat one; returns their addresses.

        Gradients need one copy: TensorFlow puts each array's into memory of its own. (Joining them
        inside TensorFlow first would take two copies.) For 670,000 parameters the copy takes 0.2 to
        0.5 ms, compared with 1.3 ms for the gradient itself; so the part that only this rank reads,
        `apart`, may stay where it is.
        """
        self._check_one()
        addresses = np.array([address_of(g) for g in gradients])
        parts = self.offsets, addresses, self.sizes
        self.gradient_is_finite = join(self.gradient, *parts, factor, apart)
        return addresses

    @property
    def tensors(self) -> list[tf.Tensor]:
        if self._tensors is None:
            self._tensors = [tensor_at(s.view(self.parameters)) for s in self.segments]
        return self._tensors

    def _hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        super()._hold(parameters, gradient)
        self._tensors: list[tf.Tensor] | None = None
        self._addresses = [s.view(parameters).ctypes.data for s in self.segments]
        for i, variable in enumerate(self.variables):
            self._alias(i)
            device = variable.value.read_value().device
            if "CPU" not in device:
                raise RuntimeError(
                    f"weights '{variable.path}' must be in main memory, got {device}: "
                    "set CUDA_VISIBLE_DEVICES=-1 before TensorFlow is imported"
                )
            self._check_alias(i)

    def _alias(self, i: int) -> None:
        """Let the i-th variable use its part of `parameters` as its memory."""
        alias(self.variables[i], self.segments[i].view(self.parameters))

    def _check_one(self) -> None:
        """Check the next variable's place."""
        self._looked_after = (self._looked_after + 1) % len(self.variables)
        self._check_alias(self._looked_after)

    def _check_alias(self, i: int) -> None:
        """Raise unless the i-th variable lies in `parameters`."""
        if self.sizes[i]:
            value = self.variables[i].value
            # (Without Keras's and TensorFlow's Python around it: 4 us in place of 20)
            weights = tf.raw_ops.ReadVariableOp(resource=value.handle, dtype=value.dtype)
            check_address(weights, self._addresses[i], self.variables[i].path, "KerasReplica")


def tensor_at(view: np.ndarray) -> tf.Tensor:
    """A tensor in this memory, which must start at a multiple of 64 bytes."""
    return tf.experimental.dlpack.from_dlpack(view.__dlpack__())


def alias(variable: Any, view: np.ndarray) -> None:
    """Let a variable use this memory."""
    variable.assign(tensor_at(view))


def check_address(weights: tf.Tensor, address: int, name: str, kind: str) -> None:
    """Raise RuntimeError unless a variable's value lies where the replica of this kind put it."""
    if address_of(weights) != address:
        raise RuntimeError(
            f"weights '{name}' no longer lie in the replica's parameters: TensorFlow assigned them "
            f"(fit, set_weights, load_weights?). Assign weights first, then make a new {kind}"
        )


def address_of(tensor: tf.Tensor) -> int:
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def check_model(model: Any) -> None:
    """Raise a one-line TypeError or ValueError if the model can't be trained as flat vectors."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"the Keras backend must be tensorflow, got {keras.backend.backend()}: set "
            "KERAS_BACKEND=tensorflow before Keras is imported"
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"a {type(model).__name__} is not a keras.Model")

    def need(condition: bool, words: str) -> None:
        if not condition:
            raise ValueError(f"model '{model.name}'{words}")

    kind, compiled = keras.optimizers.Optimizer, getattr(model, "optimizer", None)
    own = [n for n, v in vars(model).items() if isinstance(v, kind) and v is not compiled]
    need(
        not own or type(model).train_step is keras.Model.train_step,
        f" has optimizers of its own ({', '.join(own)}), for its train_step: if it is a GAN, give "
        "its two models to gan_trainer (docs/gans.md); as it is, it trains with model.fit and "
        "tutorial_dl.horovod",
    )
    need(model.built, " has no weights yet: give it a keras.Input, or call it on a batch first")
    need(model.compiled, " is not compiled: call model.compile(loss=..., metrics=[...])")
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        need(
            reduction in ("sum_over_batch_size", "mean", "mean_with_sample_weight"),
            f": its loss has reduction '{reduction}'; averages over ranks need a mean over "
            "samples, 'sum_over_batch_size'",
        )
    dtypes = {v.dtype for v in model.trainable_weights}
    need(bool(dtypes), " has no trainable weights")
    need(
        dtypes in ({"float32"}, {"float64"}),
        f" has trainable weights of dtype {', '.join(sorted(dtypes))}: expected all float32 or all "
        "float64",
    )
    # Keras computes losses in the precision that was its default when the model was compiled.
    losses = [model._compile_loss, *keras.tree.flatten(model.loss)]
    computed = {loss.dtype for loss in losses if isinstance(loss, keras.losses.Loss)}
    need(
        dtypes != {"float64"} or "float32" not in computed,
        " has float64 weights but a float32 loss: build and compile it under "
        "keras.config.set_floatx('float64')",
    )
