"""`KerasStage`: a run of a Keras model's layers, computed by TensorFlow.

A stage is a Keras model of its own, which shares its layers with the whole one. Activations are
held from the forward pass to the backward pass, and not computed again. The passes are graphs
(keras_passes.py): where W follows B at once, B computes both gradients, otherwise each its own. A
stage with effects, such as collectives, has one graph and a tape around it, and B computes both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from numba_kernels.shared.window import aligned
from tutorial_dl.model_parallel.keras_passes import Passes, called, passes_of
from tutorial_dl.model_parallel.stages import Stage, Values
from tutorial_dl.replica.keras.collective_layers import cause
from tutorial_dl.replica.keras.graphs import as_graph, keras, tf
from tutorial_dl.replica.keras.weights import alias, check_address
from tutorial_dl.replica.layers import At


def forget(variables: Sequence[Any]) -> None:
    """Let variables whose weights other ranks have share memory that is never written.

    So it takes no room.
    """
    most = max((math.prod(v.shape) for v in variables), default=0)
    if most:
        nothing = aligned(most, variables[0].dtype)
        for variable in variables:
            alias(variable, nothing[: math.prod(variable.shape)].reshape(variable.shape))


@contextmanager
def by_its_cause() -> Iterator[None]:
    """Within, what a collective raises in a graph is raised as it is: a lost rank has its name."""
    try:
        yield
    except tf.errors.OpError as error:
        raise cause(error) from None


class KerasStage(Stage):
    """A Keras model between two cuts, with its trainable variables in memory of ours.

    Args:
        names: Of its layers.
        computes: The model of this stage, by positions of its inputs and outputs.
        segments, size: Of its vectors.
        variables: Its trainable variables, in order.
        whole: The whole model, which has the loss.
        begins: Whether the model begins here: nobody needs the gradients of its inputs.
        counts_right: Whether `loss` also counts the predictions that are right.
    """

    def __init__(
        self, names, computes, segments, size, variables, whole, begins, counts_right
    ) -> None:  # fmt: skip
        self.names, self.computes, self.segments, self.size = names, computes, segments, size
        self.inputs, self.given = computes.inputs, computes.outputs
        self.variables, self.whole = variables, whole
        self._weights = [v.value for v in variables]
        self._floats_in, self._floats_out = (
            [i for i, t in enumerate(tensors) if keras.backend.is_float_dtype(t.dtype)]
            for tensors in ([] if begins else self.inputs, self.given)
        )
        self._steps = 0
        self._graphs: dict[bool, Any] = {}  # by whether it trains
        self._losses: dict[Any, Any] = {}  # graphs, by shapes of samples
        self._counts_right = counts_right

    def hold(self, parameters, gradient):
        self.held = parameters, gradient
        self.gw = [s.view(gradient) for s in self.segments]
        for segment, variable in zip(self.segments, self.variables, strict=True):
            alias(variable, segment.view(parameters))

    def _compute(self, x: list, training: bool) -> list:
        y = self.computes(x, training=training)
        if self.computes.losses:
            name = next(layer.name for layer in self.computes.layers if layer.losses)
            raise ValueError(
                f"layer '{name}' calls add_loss, which parts of a model lose: make it part of the "
                "model's loss, or train without --pipeline and --shard"
            )
        return [tf.identity(one) for one in (y if isinstance(y, list | tuple) else [y])]

    def _graph(self, x: list, training: bool = False) -> list:
        """`_compute`, as a graph that is made once."""
        if training not in self._graphs:

            def stage(x: list) -> list:
                return self._compute(x, training)

            # TensorFlow warns of many traces of one function if they are made by calls.
            made = as_graph(stage).get_concrete_function(specs(self.inputs))
            self._check_variables(made.variables)
            self._graphs[training] = made
        return self._graphs[training](x)

    def _check_variables(self, used: Iterable[Any]) -> None:
        # (Weights of frozen layers are in no vector, and so are always there.)
        others = {id(v.value) for v in self.whole.trainable_weights}
        others -= {id(w) for w in self._weights}
        for one in used:
            if id(one) in others:
                raise ValueError(
                    f"weights '{one.name}' are used by a layer that does not have them, among "
                    f"{', '.join(self.names)}: make them weights of that layer"
                )

    @cached_property
    def _passes(self) -> Passes | None:
        """The passes as graphs; None if the stage needs a tape."""
        if not self._weights:
            return None
        made = passes_of(
            lambda x: self._compute(x, training=True),
            specs(self.inputs),
            specs(self.given),
            self._floats_in,
            self._weights,
            self.apart,
        )
        if made is not None:
            self._check_variables(made.variables)
        return made

    @by_its_cause()
    def forward(self, x: Values, at: At) -> tuple[Values, Any]:
        x = [tf.constant(np.asarray(a, t.dtype)) for a, t in zip(x, self.inputs, strict=True)]
        if not at.training:
            y, saved = self._graph(x), None
        elif self._passes is not None:
            y, saved = self._passes.forward(x)
        else:
            with tf.GradientTape() as tape:
                tape.watch([x[i] for i in self._floats_in])
                y = self._graph(x, training=True)
            saved = tape, x, y
        if at.training:
            self._check_one()
        return [self._kept(np.asarray(a)) for a in y], saved

    def _kept(self, array: np.ndarray) -> np.ndarray:
        """A copy, if an output is weights themselves, which change or are dropped."""
        return array.copy() if np.may_share_memory(array, self.held[0]) else array

    def _check_one(self) -> None:
        """Raise RuntimeError if one variable, each in its turn, does not use our memory."""
        if self.variables:
            i = self._steps % len(self.variables)
            self._steps += 1
            if self.segments[i].size:
                address = self.segments[i].view(self.held[0]).ctypes.data
                weights = self._weights[i].read_value()
                check_address(weights, address, self.segments[i].name, "replica")

    @by_its_cause()
    def backward_inputs(self, saved, gy):
        gy = [tf.constant(g) for g in gy]
        if self._passes is not None:
            found, kept = self._passes.backward_inputs(gy, saved)
            return [np.asarray(g) for g in found], kept
        tape, x, y = saved
        sources = [x[i] for i in self._floats_in]
        found = tape.gradient([y[i] for i in self._floats_out], [*sources, *self._weights], gy)
        gx = found[: len(sources)]
        gx = [
            np.zeros_like(a) if g is None else np.asarray(g)
            for g, a in zip(gx, sources, strict=True)
        ]
        return gx, found[len(sources) :]

    def backward_weights(self, saved, kept):
        found = kept if self._passes is None else self._passes.backward_weights(kept)
        for gw, g in zip(self.gw, found, strict=True):
            if g is not None:  # embeddings have tf.IndexedSlices
                gw += np.asarray(tf.convert_to_tensor(g)).reshape(gw.shape)

    def _loss_and_gradient(self, y: Any, targets: Any) -> tuple[Any, Any]:
        """Mean loss, and the gradient of the sum over samples."""
        with tf.GradientTape() as tape:
            tape.watch(y)
            loss = self.whole.compute_loss(x=None, y=targets, y_pred=y, training=True)
        return loss, tape.gradient(loss, y) * tf.cast(tf.shape(y)[0], y.dtype)

    def loss(self, y, targets):
        targets = np.asarray(targets)
        key = y[0].shape[1:], targets.shape[1:], targets.dtype
        if key not in self._losses:
            # Keras makes variables for the first loss, which a graph can't
            self.whole.compute_loss(x=None, y=tf.constant(targets), y_pred=tf.constant(y[0]))
            given = (tf.TensorSpec((None, *a.shape[1:]), a.dtype) for a in (y[0], targets))
            graph = as_graph(self._loss_and_gradient)
            self._losses[key] = called(graph.get_concrete_function(*given))
        loss, g = self._losses[key](tf.constant(y[0]), tf.constant(targets))
        sums = {"loss": float(loss) * len(y[0])}
        if self._counts_right:
            sums["accuracy"] = float(right(y[0], targets)) * len(y[0])
        return sums, [np.asarray(g)]

    def result(self, y):
        return y[0]


def specs(tensors: Sequence[Any]) -> list[Any]:
    """What TensorFlow is told of these tensors of a Keras graph."""
    return [tf.TensorSpec(t.shape, t.dtype) for t in tensors]


def right(y: np.ndarray, targets: np.ndarray) -> float:
    """The share of predictions that are right, for labels, one-hot rows, or numbers 0 and 1."""
    targets = np.asarray(targets)
    if y.shape[-1] == 1:
        return float(((y.reshape(-1) > 0.5) == targets.reshape(-1)).mean())
    labels = targets.argmax(axis=-1) if targets.shape == y.shape else targets.reshape(y.shape[:-1])
    return float((y.argmax(axis=-1) == labels).mean())
