"""A compiled Keras model as a Replica: TensorFlow computes, but on weights that live in our memory.

Keras keeps every weight in a TensorFlow variable, somewhere. Here each variable is made to look at
its stretch of one flat vector of ours, through DLPack, the protocol by which array libraries lend
each other memory. So an optimizer's kernel that writes the vector has changed the network, and
nothing is copied. TensorFlow holds a reference to the vector as long as one of its tensors looks at
it: neither outlives the other.

This works one way only. A variable that TensorFlow assigns (`model.fit`, `set_weights`,
`load_weights`) gets new memory of TensorFlow's. Every step looks after one variable in turn and
raises where that has happened, instead of training a model that no longer learns.

Gradients come the other way with one copy: TensorFlow puts each layer's into memory of its own, and
it is copied to its place in the flat `gradient`. (Joining them inside TensorFlow first would be two
copies; for 670,000 parameters one copy takes 0.18 ms of a step of 1.3 ms.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from numba_kernels.window import aligned
from tutorial_dl.replica.base import Batch, check_place, lay_out, length
from tutorial_dl.replica.quiet import hide_tensorflow_chatter

hide_tensorflow_chatter()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

CACHE_LINE = 64  # bytes; TensorFlow takes over memory only where it starts at such a multiple


class KerasReplica:
    """The Replica of a compiled Keras model, functional, sequential or subclassed.

    Its loss is the one of `model.compile(loss=...)` with the model's regularisers and added losses,
    its metrics are those of `model.compile(metrics=...)`. The optimizer that the model was compiled
    with is not used: updating `parameters` is the strategies' business.

    Several inputs or outputs: batches hold a tuple or a dict of arrays, as the model expects them.
    A float64 model is made and compiled under `keras.config.set_floatx("float64")`.

    Parameters
    ----------
    model : built and compiled, its trainable weights all float32 or all float64. It stays usable
        (predict, evaluate, save), always with the current weights.

    Attributes
    ----------
    parameters, gradient, segments : see `Replica`. Segments start at multiples of 64 bytes; the
        gaps between them hold zeros.
    state : the weights that are not trained by gradient (moving statistics of batch
        normalisation), joined: a copy, and read-only so that nobody takes it for more. To change
        them, assign the whole: `replica.state = average`.

    Raises
    ------
    TypeError : not a Keras model
    ValueError : a model that cannot be trained in this way, and why
    """

    def __init__(self, model: keras.Model) -> None:
        _check(model)
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
        self._functions: dict[Any, Any] = {}
        self._built = False
        self._steps = 0
        parameters, gradient = (aligned(length(self.segments), self.dtype) for _ in range(2))
        for segment, variable in zip(self.segments, self._variables, strict=True):
            segment.of(parameters)[...] = variable.numpy()
        self._hold(parameters, gradient)

    def place(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """Move both vectors, values included, into the given memory (see `Replica.place`)."""
        check_place(self, parameters, gradient)
        for i in range(len(self._variables)):
            self._check_alias(i, self._variables[i].value.read_value())
        parameters[:], gradient[:] = self.parameters, self.gradient
        self._hold(parameters, gradient)

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

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """Fill `gradient`; return (mean loss, samples). See `Replica`.

        Raises
        ------
        RuntimeError : the model's weights were assigned behind the replica's back
        """
        samples = _samples(batch)
        if samples == 0:
            self.gradient[:] = 0
            return 0.0, 0
        # The weights come back too, which costs nothing: only to see where they lie.
        loss, gradients, weights = self._call(self._gradient_step, batch)
        self._steps += 1
        looked_after = self._steps % len(weights)
        self._check_alias(looked_after, weights[looked_after])
        for place, gradient in zip(self._gradient_views, gradients, strict=True):
            np.copyto(place, memoryview(gradient))
        return float(loss), samples

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Keras's own metrics over all samples of `batches`, and "samples".

        Where there are no samples, all are 0; before the first batch was ever seen, only "loss"
        and "samples" are known.
        """
        samples, output_losses = 0, {}
        for batch in batches:
            here = _samples(batch)
            if samples == 0:
                self._build(self._arrays(batch))  # even of 0 samples: this names the metrics
                self.model.reset_metrics()
            if here:
                self._call(self._test_step, batch)
                # Keras averages the losses of single outputs over batches, large and small alike.
                for tracker in self.model._compile_loss.metrics:
                    loss = output_losses.get(tracker.name, 0.0) + here * float(tracker.result())
                    output_losses[tracker.name] = loss
                    tracker.reset_state()
            samples += here
        if samples == 0:
            names = self.model.get_metrics_result() if self._built else ["loss"]
            return {**dict.fromkeys(names, 0.0), "samples": 0}
        metrics = {name: float(m) for name, m in self.model.get_metrics_result().items()}
        output_losses = {name: loss / samples for name, loss in output_losses.items()}
        return {**metrics, **output_losses, "samples": samples}

    # TensorFlow's side of it: traced once for each structure of batches, not for each size.

    def _gradient_step(self, x: Any, y: Any) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        model, weights = self.model, [v.value for v in self._variables]
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=outputs, training=True)
        gradients = [
            # Embeddings' gradients are rows and their numbers: convert_to_tensor makes them dense.
            tf.zeros_like(w) if g is None else tf.convert_to_tensor(g)
            for w, g in zip(weights, tape.gradient(loss, weights), strict=True)
        ]
        return loss, gradients, [w.read_value() for w in weights]

    def _test_step(self, x: Any, y: Any) -> Any:
        return self.model.test_step((x, y))

    def _call(self, step: Callable, batch: Batch) -> Any:
        x, y = self._arrays(batch)
        leaves = keras.tree.flatten((x, y))
        key = (step.__name__, *((a.shape[1:], a.dtype) for a in leaves))
        if key not in self._functions:
            self._build((x, y))
            specs = keras.tree.map_structure(
                lambda a: tf.TensorSpec((None, *a.shape[1:]), a.dtype), (x, y)
            )
            self._functions[key] = tf.function(step).get_concrete_function(*specs)
        return self._functions[key](*keras.tree.map_structure(tf.constant, (x, y)))

    def _arrays(self, batch: Batch) -> Batch:
        """The batch as numpy arrays, floating-point numbers in the weights' precision."""

        def array(a: Any) -> np.ndarray:
            a = np.asarray(a)
            return a.astype(self.dtype, copy=False) if a.dtype.kind == "f" else a

        x, y = batch
        return keras.tree.map_structure(array, x), keras.tree.map_structure(array, y)

    def _build(self, batch: Batch) -> None:
        """Have Keras make the variables of losses and metrics, which it cannot while tracing."""
        if not self._built:
            one = keras.tree.map_structure(
                lambda a: tf.zeros((1, *a.shape[1:]), a.dtype), (batch[0], batch[1])
            )
            self.model.test_step(one)
            self.model.reset_metrics()
            _check_metrics(self.model)
            self._built = True

    # Whose memory it is.

    def _hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        self.parameters, self.gradient = parameters, gradient
        self._gradient_views = [s.of(gradient) for s in self.segments]
        views = [s.of(parameters) for s in self.segments]
        self._addresses = [v.ctypes.data for v in views]
        for i, (variable, view) in enumerate(zip(self._variables, views, strict=True)):
            variable.assign(tf.experimental.dlpack.from_dlpack(view.__dlpack__()))
            weights = variable.value.read_value()
            if "CPU" not in weights.device:
                raise RuntimeError(
                    f"weights '{variable.path}' are on {weights.device}, but must be in main "
                    "memory: set CUDA_VISIBLE_DEVICES=-1 before TensorFlow is imported"
                )
            self._check_alias(i, weights)

    def _check_alias(self, i: int, weights: tf.Tensor) -> None:
        """Raise unless the i-th variable, whose value is `weights`, lies in `parameters`."""
        memory = np.asarray(memoryview(weights))
        if memory.size and memory.__array_interface__["data"][0] != self._addresses[i]:
            raise RuntimeError(
                f"weights '{self._variables[i].path}' no longer lie in the replica's parameters: "
                "TensorFlow assigned them (fit, set_weights, load_weights?). Assign weights first, "
                "then make a new KerasReplica"
            )


def _samples(batch: Batch) -> int:
    return len(keras.tree.flatten(batch[0])[0])


def _check(model: Any) -> None:
    """Raise where the model cannot be trained as two flat vectors, in one line that says why."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=tensorflow "
            "before it is imported"
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"a {type(model).__name__} is no keras.Model")
    name = f"model '{model.name}'"
    if not model.built:
        raise ValueError(
            f"{name} has no weights yet: give it a keras.Input, or call it on a batch first"
        )
    if not model.compiled:
        raise ValueError(f"{name} is not compiled: call model.compile(loss=..., metrics=[...])")
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            f"{name} has a train_step of its own, which would not be called: "
            "override compute_loss, or write a Replica"
        )
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
            raise ValueError(
                f"{name}: its loss has reduction '{reduction}'; averages over ranks need "
                "a mean over samples, 'sum_over_batch_size'"
            )
    if not model.trainable_weights:
        raise ValueError(f"{name} has no trainable weights")
    dtypes = {v.dtype for v in model.trainable_weights}
    if dtypes not in ({"float32"}, {"float64"}):
        raise ValueError(
            f"{name} has trainable weights of dtype {', '.join(sorted(dtypes))}: "
            "expected all float32 or all float64"
        )
    # Keras computes losses in the precision that was its default when the model was compiled.
    if dtypes == {"float64"} and "float32" in _loss_dtypes(model):
        raise ValueError(
            f"{name} has weights of float64 but a loss of float32: make and compile it under "
            "keras.config.set_floatx('float64')"
        )


def _check_metrics(model: keras.Model) -> None:
    """Raise unless every metric is a mean over samples: others can't be had from ranks' shares."""
    compiled = model._compile_metrics
    for metric in compiled.metrics if compiled is not None else []:
        if not isinstance(metric, keras.metrics.Mean):
            raise ValueError(
                f"model '{model.name}': metric '{metric.name}' is no mean over samples, so it "
                "can't be put together from what ranks see: leave it out of compile, and call "
                "model.evaluate after training"
            )


def _loss_dtypes(model: keras.Model) -> set[str]:
    losses = [model._compile_loss, *keras.tree.flatten(model.loss)]
    return {loss.dtype for loss in losses if isinstance(loss, keras.losses.Loss)}
