"""`KerasReplica`: a compiled Keras model as a Replica, computed by TensorFlow on our memory.

How TensorFlow's variables come to lie in our memory: keras_variables.py.

Gradients need one copy: TensorFlow puts each layer's into memory of its own, from where it is
copied to its place in the flat `gradient`. (Joining them inside TensorFlow first would take two
copies.) For 670,000 parameters the copy takes 0.2 to 0.5 ms, compared with 1.3 ms for the gradient
itself; so the part that only this rank reads may stay where it is (`compute_gradient(batch,
apart)`).
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch, Brought
from tutorial_dl.replica.collective_layers import CollectiveLayer, cause, without_samples
from tutorial_dl.replica.joining import join
from tutorial_dl.replica.keras_losses import losses_by, masked, may_mask, over_ranks
from tutorial_dl.replica.keras_metrics import KerasMetrics, as_fit, is_empty
from tutorial_dl.replica.keras_variables import KerasVariables, address_of, keras, tf

NOTHING = np.zeros((3, 0), np.int64)
SIZES = 4  # batch sizes of a recurrent network that get graphs of their own


class KerasReplica(KerasVariables):
    """The Replica of a compiled Keras model, functional, sequential or subclassed.

    Its loss is that of `model.compile(loss=...)` with the model's regularisers and added losses,
    its metrics are those of `model.compile(metrics=...)`. The optimizer that it was compiled with
    is what `own_optimizer` returns, as one of ours, because strategies update `parameters`.

    For several inputs or outputs, batches hold a tuple or dict of arrays, as the model expects. A
    float64 model must be built and compiled under `keras.config.set_floatx("float64")`.

    `model` must be built and compiled, its trainable weights all float32 or all float64; a
    TypeError or ValueError says why it can't be trained. It stays usable (predict, evaluate, save),
    always with the current weights. `segments` start at multiples of 64 bytes; the gaps between
    them hold zeros. `state`, the joined weights that are not trained by gradient, is a read-only
    copy.
    """

    keeps_apart = True  # compute_gradient has `apart`
    uses_team = True
    gradient_is_finite = True

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        collective = [x for x in model._flatten_layers() if isinstance(x, CollectiveLayer)]
        self._collective = collective
        common = {id(v) for layer in collective for v in layer.non_trainable_weights}
        self._own_state = [v for v in self._state if id(v) not in common]
        self._recurrent = any(isinstance(x, keras.layers.RNN) for x in model._flatten_layers())
        # (samples or None, structure) -> graph, captured variables, dtypes of outputs
        self._functions: dict[Any, tuple[Any, list, list]] = {}
        self._metrics = KerasMetrics(model)
        self._may_mask = may_mask(model)
        self._masked = False  # whether an output has a mask; known once `_build` was called
        self._team: Any = None  # of the graphs
        self._built = False
        self._steps = 0
        self.loss_scale = 1.0
        self.own = NOTHING

    def use_team(self, team) -> None:
        for layer in self._collective:
            layer.training_team = team
        if (self._collective or self._may_mask) and team is not self._team:
            self._functions.clear()  # a graph keeps its team
        self._team = team

    def own_optimizer(self, given: Any = None) -> Brought | None:
        from tutorial_dl.replica.keras_optimizers import brought

        return brought(self.model, self.model.optimizer if given is None else given)

    def predict(self, x: Any) -> Any:
        """The model's outputs for inputs `x` as numpy arrays, with all layers in inference mode."""
        x, *_ = self._arrays((x, ()))
        return keras.tree.map_structure(np.asarray, self.model(x, training=False))

    def compute_gradient(
        self, batch: Batch, apart: tuple[int, int] | None = None
    ) -> tuple[float, int]:
        """Fill `gradient`; return (mean loss, samples). See `Replica`.

        [first, last) of the gradient, `apart`, may stay in TensorFlow's memory, which saves a copy;
        `own` has its place, valid until the next call.
        """
        samples, self.own, self._kept = _samples(batch), NOTHING, None
        if samples == 0:
            if self._may_mask:
                self._build(self._arrays(batch))
            if self._collective or self._shares_losses:
                self._take_part(batch)
            self.gradient[:] = 0
            self.gradient_is_finite = True
            return 0.0, 0
        # The weights are returned, too, at no cost, to check where they lie in memory.
        loss, *rest = self._run(self._gradient_step, batch)
        gradients, weights = rest[: len(self.segments)], rest[len(self.segments) :]
        self._steps += 1
        looked_after = self._steps % len(weights)
        self._check_alias(looked_after, weights[looked_after])
        addresses = np.array([address_of(g) for g in gradients])
        parts, factor = (self._offsets, addresses, self._sizes), 1 / self.loss_scale
        if apart is not None:
            self._kept = gradients  # or TensorFlow would reuse their memory too early
            self.own, self.own_factor = np.array([self._offsets, self._sizes, addresses]), factor
        self.gradient_is_finite = join(self.gradient, *parts, factor, apart or (0, 0))
        return float(loss), samples

    def _take_part(self, batch: Batch) -> None:
        """Without samples: compute on a placeholder of weight 0 (see collective_layers.py).

        The moving statistics of layers that need all ranks are shared and change; other weights
        that are not trained stay as they were.
        """
        before = [v.numpy() for v in self._own_state]
        one = keras.tree.map_structure(
            lambda a: np.full((1, *a.shape[1:]), b"" if a.dtype.hasobject else 0, a.dtype), batch
        )
        self._run(self._step_without_samples, one)
        for variable, value in zip(self._own_state, before, strict=True):
            variable.assign(value)

    @property
    def _shares_losses(self) -> bool:
        return self._masked and self._team is not None and self._team.size > 1

    def try_out(self, batch: Batch, shared: bool, by_team: bool = True) -> None:
        for layer in self.model._flatten_layers() if shared else ():
            if getattr(layer, "synchronized", False) and layer not in self._collective:
                raise ValueError(
                    f"layer '{layer.name}' has synchronized=True, which only tf.distribute heeds: "
                    "convert the model with tutorial_dl.layers.convert(model)"
                )
        arrays = self._arrays(batch)
        weighted = any(
            getattr(loss, "reduction", "") == "mean_with_sample_weight"
            for loss in keras.tree.flatten(self.model.loss)
        )
        if weighted and shared and not is_empty(arrays[2]):
            raise ValueError(
                f"model '{self.model.name}': a loss with reduction 'mean_with_sample_weight' and "
                "weights of samples is no mean over samples; use 'sum_over_batch_size'"
            )
        if not self._may_mask and self._metrics.all_of_keras:
            return
        self._build(arrays)
        if self._masked and shared and not by_team:
            raise ValueError(
                f"model '{self.model.name}' has a mask, so its loss is not a mean over samples: "
                "use it with strategy 'synchronous' or an asynchronous one, without accumulate"
            )
        self._metrics.try_out(arrays, shared and not self._masked)

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Keras's metrics over all samples of `batches`, and "samples"; all 0 without samples."""
        sums = KerasReplica.measure(self, batches)
        return {**KerasReplica.metrics_of(self, sums), "samples": int(sums["samples"])}

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """The numbers of Keras's metrics, as sums over the samples; see `Replica`."""
        samples = 0
        for batch in batches:
            here, arrays = _samples(batch), self._arrays(batch)
            if samples == 0:
                self._build(arrays)  # even with 0 samples, to know the metrics
                self._metrics.reset()
            if here:
                inputs = keras.tree.map_structure(tf.constant, arrays)
                eagerly = self.model.run_eagerly
                step = self._test_step if eagerly else self._function(self._test_step, arrays)[0]
                counted = step(*inputs, self._loss_scale)
                self._metrics.weigh(here, [float(number) for number in counted])
            samples += here
        return {"samples": samples, **(self._metrics.sums if samples else {})}

    def metrics_of(self, sums: dict[str, Any]) -> dict[str, float]:
        if sums["samples"]:
            return self._metrics.result(sums)
        return dict.fromkeys(self._metrics.names() if self._built else ["loss"], 0.0)

    # TensorFlow functions, traced once for each structure of batches.

    def _gradient_step(self, x: Any, y: Any, w: Any, loss_scale: Any) -> list[tf.Tensor]:
        """[loss, gradient of loss_scale * loss by each of the weights ..., the weights ...]

        x, y, w: inputs, targets and weights of samples, as in `_arrays`.
        """
        of_batch = self._loss_and_gradients
        if self.model.jit_compile is True and not self._collective and not self._shares_losses:
            of_batch = tf.function(of_batch, jit_compile=True)  # the user's compile asks for XLA
        found = of_batch(x, y, w, loss_scale)
        return [*found, *(v.value.read_value() for v in self._variables)]

    def _loss_and_gradients(self, x: Any, y: Any, w: Any, loss_scale: Any) -> list[tf.Tensor]:
        model, weights = self.model, [v.value for v in self._variables]
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            shared = losses_by(model, over_ranks(self._team)) if self._shares_losses else None
            with shared or nullcontext():
                x, y, w = as_fit(x, y, w)
                loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=w, training=True)
            scaled = loss * loss_scale
        gradients = [
            # Embeddings have tf.IndexedSlices as gradients; convert_to_tensor makes them dense.
            tf.zeros_like(one) if g is None else tf.convert_to_tensor(g)
            for one, g in zip(weights, tape.gradient(scaled, weights), strict=True)
        ]
        return [loss, *gradients]

    def _step_without_samples(self, *batch_and_scale: Any) -> list[tf.Tensor]:
        with without_samples():
            return self._gradient_step(*batch_and_scale)

    def _test_step(self, x: Any, y: Any, w: Any, loss_scale: Any) -> list[tf.Tensor]:
        """[V of each loss, or -1; see keras_losses.py]; the rest is in the metrics' variables"""
        found = []

        def seen(loss: tf.Tensor, counted: tf.Tensor | None, samples: tf.Tensor) -> tf.Tensor:
            found.append(tf.constant(-1, tf.float64) if counted is None else counted)
            return loss

        with losses_by(self.model, seen):
            self.model.test_step(as_fit(x, y, w))
        return found

    def _run(self, step: Callable, batch: Batch) -> list[tf.Tensor]:
        """The tensors that `step(x, y, w, loss_scale)` returns for a batch, faster than by a call.

        Calling the step of a small network takes 0.3 ms as a Python function, and 0.1 ms as a
        TensorFlow operation, which is possible as no gradient through it is needed.
        """
        batch = self._arrays(batch)
        if self.model.run_eagerly:
            return step(*keras.tree.map_structure(tf.constant, batch), self._loss_scale)
        function, captured, types = self._function(step, batch)
        inputs = [*(tf.constant(a) for a in tf.nest.flatten(batch)), self._loss_scale, *captured]
        try:
            return tf.raw_ops.StatefulPartitionedCall(args=inputs, Tout=types, f=function)
        except tf.errors.OpError as error:
            raise cause(error) from None

    def _function(self, step: Callable, batch: Batch) -> tuple[Any, list, list]:
        """`step` as a graph for batches of this structure, with any number of samples.

        With a recurrent layer, the graph has a fixed number of samples, which makes its loop over
        time 1.4 times faster (LSTM, 338 steps, batch 100: 50 ms instead of 71 ms). After `SIZES`
        batch sizes, all others share one graph.
        """
        leaves = tf.nest.flatten(batch)
        structure = (step.__name__, *((a.shape[1:], a.dtype) for a in leaves))
        samples = len(leaves[0]) if self._recurrent else None
        if (samples, structure) not in self._functions:
            own = sum(s is not None and of == structure for s, of in self._functions)
            samples = samples if own < SIZES else None
        key = samples, structure
        if key not in self._functions:
            self._build(batch)
            specs = keras.tree.map_structure(
                lambda a: tf.TensorSpec((samples, *a.shape[1:]), a.dtype), batch
            )
            scale = tf.TensorSpec((), self.dtype)
            function = tf.function(step).get_concrete_function(*specs, scale)
            types = [output.dtype for output in function.outputs]
            self._functions[key] = function, list(function.captured_inputs), types
        return self._functions[key]

    @property
    def computes_in_float16(self) -> bool:
        return any(layer.compute_dtype == "float16" for layer in self.model._flatten_layers())

    @property
    def loss_scale(self) -> float:
        return self._scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._scale, self._loss_scale = float(value), tf.constant(value, self.dtype)

    def _arrays(self, batch: Batch) -> Batch:
        """(x, y, w) as numpy arrays, floating-point numbers in the dtype of the model's weights.

        w are weights of the samples; y and w are () if there are none.
        """

        def array(a: Any) -> np.ndarray:
            a = np.asarray(a)
            return a.astype(self.dtype, copy=False) if a.dtype.kind == "f" else a

        parts = (*batch, ()) if len(batch) == 2 else batch
        return tuple(keras.tree.map_structure(array, part) for part in parts)

    def _build(self, batch: Batch) -> None:
        """Make Keras create the variables of losses and metrics, which it can't while tracing."""
        if not self._built:
            one = keras.tree.map_structure(lambda a: tf.zeros((1, *a.shape[1:]), a.dtype), batch)
            try:
                self.model.test_step(as_fit(*one))
            except Exception as error:
                raise self._metrics.failed(one) or error from None
            self.model.reset_metrics()
            self._masked = self._may_mask and masked(self.model(one[0], training=False))
            self._built = True


def _samples(batch: Batch) -> int:
    return len(keras.tree.flatten(batch[0])[0])
