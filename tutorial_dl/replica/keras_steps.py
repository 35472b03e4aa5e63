"""`KerasSteps`: what TensorFlow computes of a Keras model, as graphs: gradients, losses, metrics.

A graph is traced once for each structure of batches. It returns the gradients; weights are updated
elsewhere, in the memory that keras_variables.py describes.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from tutorial_dl.replica import keras_own_step as own_step
from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.collective_layers import CollectiveLayer, cause, without_samples
from tutorial_dl.replica.keras_losses import losses_by, masked, may_mask, over_ranks
from tutorial_dl.replica.keras_metrics import KerasMetrics, as_fit, packed, unchanged
from tutorial_dl.replica.keras_misfits import misfit, wrong_label
from tutorial_dl.replica.keras_training_metrics import TrainingMetrics
from tutorial_dl.replica.keras_variables import KerasVariables, as_graph, keras, tf
from tutorial_dl.tensorflow_chatter import chatter_hidden

NO_NUMBERS = np.zeros(0)
ANY = -1  # any number of samples
SIZES = 4  # batch sizes of a recurrent network that get graphs of their own


class KerasSteps(KerasVariables):
    """The graphs of a KerasReplica, and the metrics that they update."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        layers = model._flatten_layers()
        self._collective = [x for x in layers if isinstance(x, CollectiveLayer)]
        self._recurrent = any(isinstance(x, keras.layers.RNN) for x in layers)
        # (samples or None, structure) -> graph, captured variables, dtypes of outputs
        self._functions: dict[Any, tuple[Any, list, list]] = {}
        self._metrics = KerasMetrics(model)
        self._training = TrainingMetrics(self._metrics)
        self._counts = False  # whether metrics are updated while training
        self._own_step = own_step.has_own_step(model)
        self._may_mask = may_mask(model)
        self._masked = False  # whether an output has a mask; known once `_build` was called
        self._team: Any = None  # of the graphs
        self._built = False
        self.loss_scale = 1.0
        # What XLA computes: a step's name, and of how many samples; ANY: the user's compile asks
        # for it.
        asked = model.jit_compile is True and not model.run_eagerly
        self._by_xla = {self._gradient_step.__name__: ANY} if asked else {}
        self._traces_for_xla = False
        self._training_mode = True  # False while graph and XLA are compared
        self._ran: set[Any] = set()  # graphs that have been called

    @property
    def _shares_losses(self) -> bool:
        return self._masked and self._team is not None and self._team.size > 1

    def _gradient_step(self, x: Any, y: Any, w: Any, loss_scale: Any) -> list[tf.Tensor]:
        """[loss, numbers of metrics, gradient of loss_scale * loss by each weight ..., weights ...]

        x, y, w: inputs, targets and weights of samples, as in `_arrays`.
        """
        found = self._by(self._loss_and_gradients)(x, y, w, loss_scale)
        return [*found, *(v.value.read_value() for v in self._variables)]

    def _loss_and_gradients(self, x: Any, y: Any, w: Any, loss_scale: Any) -> list[tf.Tensor]:
        if self._own_step:
            batch = packed(x, y, w)
            loss, gradients = own_step.loss_and_gradients(self.model, batch, loss_scale)
            numbers = self._training.held() if self._counts else NO_NUMBERS
        else:
            loss, numbers, gradients = self._by_tape(*as_fit(x, y, w), loss_scale)
        weights = [v.value for v in self._variables]
        gradients = [
            # Embeddings have tf.IndexedSlices as gradients; convert_to_tensor makes them dense.
            tf.zeros_like(one) if g is None else tf.convert_to_tensor(g)
            for one, g in zip(weights, gradients, strict=True)
        ]
        return [loss, numbers, *gradients]

    def _by_tape(self, x: Any, y: Any, w: Any, loss_scale: Any) -> tuple[Any, Any, list]:
        """What Keras's own train_step computes: loss, numbers of metrics, gradients."""
        model = self.model
        if self._counts:
            self._training.reset()
        with tf.GradientTape() as tape:
            outputs = model(x, training=self._training_mode)
            shared = losses_by(model, over_ranks(self._team)) if self._shares_losses else None
            with shared or nullcontext():
                loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=w, training=True)
            scaled = loss * loss_scale
        numbers = self._training.of_batch(x, y, outputs, w) if self._counts else NO_NUMBERS
        return loss, numbers, tape.gradient(scaled, [v.value for v in self._variables])

    def _step_in_inference(self, *batch_and_scale: Any) -> list[tf.Tensor]:
        """As `_gradient_step`, but layers draw no masks."""
        self._training_mode = False
        try:
            return self._gradient_step(*batch_and_scale)
        finally:
            self._training_mode = True

    def _step_without_samples(self, *batch_and_scale: Any) -> list[tf.Tensor]:
        with without_samples():
            return self._gradient_step(*batch_and_scale)

    def _test_step(self, x: Any, y: Any, w: Any, loss_scale: Any) -> list[tf.Tensor]:
        """[V of each loss, or -1; see keras_losses.py]; the rest is in the metrics' variables"""
        return self._by(self._tested)(x, y, w)

    def _tested(self, x: Any, y: Any, w: Any) -> list[tf.Tensor]:
        found = []

        def seen(loss: tf.Tensor, counted: tf.Tensor | None, samples: tf.Tensor) -> tf.Tensor:
            found.append(tf.constant(-1, tf.float64) if counted is None else counted)
            return loss

        with losses_by(self.model, seen):
            self.model.test_step(packed(x, y, w))
        return found

    def _run(self, step: Callable, batch: Batch) -> list[tf.Tensor]:
        """The tensors that `step(x, y, w, loss_scale)` returns for a batch, faster than by a call.

        Calling the step of a small network takes 0.3 ms as a Python function, and 0.1 ms as a
        TensorFlow operation, which is possible as no gradient through it is needed.
        """
        batch = self._arrays(batch)
        if self.model.run_eagerly:
            self._build(batch)
            return step(*keras.tree.map_structure(tf.constant, batch), self._loss_scale)
        function, captured, types = self._function(step, batch)
        inputs = [*(tf.constant(a) for a in tf.nest.flatten(batch)), self._loss_scale, *captured]
        ran = function in self._ran
        self._ran.add(function)
        try:
            with nullcontext() if ran else self._hidden_chatter():
                return tf.raw_ops.StatefulPartitionedCall(args=inputs, Tout=types, f=function)
        except tf.errors.OpError as error:
            raise wrong_label(self.model, batch[1]) or cause(error) from None

    def _function(self, step: Callable, batch: Batch) -> tuple[Any, list, list]:
        """`step` as a graph for batches of this structure, with any number of samples.

        With a recurrent layer, the graph has a fixed number of samples, which makes its loop over
        time 1.4 times faster (LSTM, 338 steps, batch 100: 50 ms instead of 71 ms). After `SIZES`
        batch sizes, all others share one graph.
        """
        leaves = tf.nest.flatten(batch)
        xla = self._is_by_xla(step, len(leaves[0]))
        structure = (step.__name__, xla, *((a.shape[1:], a.dtype) for a in leaves))
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
            with self._tracing(xla):
                function = as_graph(step, self._own_step).get_concrete_function(*specs, scale)
            types = [output.dtype for output in function.outputs]
            self._functions[key] = function, list(function.captured_inputs), types
        return self._functions[key]

    def _is_by_xla(self, step: Callable, samples: int) -> bool:
        return not self._calls_python and self._by_xla.get(step.__name__) in (samples, ANY)

    def _hidden_chatter(self) -> AbstractContextManager:
        """Within, nobody sees what XLA says of what it can't compile, and oneDNN of what it can't
        compute. A step that waits for other ranks may have to say so."""
        return nullcontext() if self._calls_python else chatter_hidden()

    @property
    def _calls_python(self) -> bool:
        """Whether graphs call Python, to exchange something with other ranks."""
        return self._collective or self._shares_losses

    @contextmanager
    def _tracing(self, by_xla: bool) -> Iterator[None]:
        """Within, what `_by` returns is compiled by XLA if `by_xla`."""
        self._traces_for_xla = by_xla
        try:
            yield
        finally:
            self._traces_for_xla = False

    def _by(self, function: Callable) -> Callable:
        by_xla = self._traces_for_xla
        return as_graph(function, self._own_step, jit_compile=True) if by_xla else function

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
            n = self.traits.fixed_batch or 1
            zeros = zeros_like(batch, n)
            one = keras.tree.map_structure(tf.constant, zeros)
            try:
                with unchanged(self.model), self._hidden_chatter():
                    self.model.test_step(packed(*one))
            except Exception as error:
                wrong = own_step.no_test_step(self.model) or misfit(self.model, *zeros[:2])
                raise wrong or self._metrics.failed(one) or error from None
            with self._hidden_chatter():
                self._masked = self._may_mask and masked(self.model(one[0], training=False))
            self._built = True


def zeros_like(batch: Batch, samples: int) -> Batch:
    """A batch of so many samples that are zeros, or empty text."""

    def zeros(a: np.ndarray) -> np.ndarray:
        return np.full((samples, *a.shape[1:]), b"" if a.dtype.hasobject else 0, a.dtype)

    return keras.tree.map_structure(zeros, batch)


def own_batch_size(model: keras.Model) -> int | None:
    """Return the batch size in the inputs' shape if a layer is stateful, else None."""
    if not any(getattr(layer, "stateful", False) for layer in model._flatten_layers()):
        return None
    inputs = keras.tree.flatten(getattr(model, "inputs", None) or [])
    return inputs[0].shape[0] if inputs else None
