"""`KerasStage`: a run of a Keras model's layers, computed by TensorFlow.

Activations are held from the forward pass to the backward pass, and not computed again. Where W
follows B at once, each pass is one graph (keras_passes.py), and B computes both; a stage with
effects, such as collectives, has one graph and a tape around it. Where W does not follow
(zero-bubble schedules), every node has a tape of its own, and B and W are computed apart, operation
by operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from tutorial_dl.model_parallel.keras_graph import compute
from tutorial_dl.model_parallel.keras_passes import Passes, called, passes_of
from tutorial_dl.model_parallel.stages import Stage, Values
from tutorial_dl.replica.keras.collective_layers import cause
from tutorial_dl.replica.keras.graphs import as_graph, tf
from tutorial_dl.replica.keras.weights import alias, check_address
from tutorial_dl.replica.layers import At


def is_float(dtype: str) -> bool:
    return np.dtype(dtype).kind == "f"


@contextmanager
def by_its_cause() -> Iterator[None]:
    """Within, what a collective raises in a graph is raised as it is: a lost rank has its name."""
    try:
        yield
    except tf.errors.OpError as error:
        raise cause(error) from None


class KerasStage(Stage):
    """Nodes of a Keras model, with their variables in memory of ours.

    `apart` says whether B and W are computed apart; a Pipeline sets it by its schedule. A stage
    that `begins` the model computes no gradients of its inputs, which nobody needs. `counts_right`
    says whether `loss` also counts the predictions that are right.
    """

    apart = True

    def __init__(
        self, nodes, boundary, segments, size, variables, model, begins, counts_right
    ) -> None:
        self.nodes, self.segments, self.size = nodes, segments, size
        self.inputs, self.given = boundary
        self.variables, self.model = variables, model
        self._weights = [v.value for v in variables]
        place = {id(v): i for i, v in enumerate(variables)}
        self._of_node = [
            [place[id(v)] for v in getattr(node.operation, "trainable_weights", [])]
            for node in nodes
        ]
        self._floats_in = [i for i, t in enumerate(self.inputs) if is_float(t.dtype) and not begins]
        self._not_needed = {id(t) for t in self.inputs} if begins else set()
        self._floats_out = [i for i, t in enumerate(self.given) if is_float(t.dtype)]
        self._heeds_training = any(map(heeds_training, nodes))
        self._steps = 0
        self._graphs: dict[bool, Any] = {}  # by whether it trains
        self._losses: dict[Any, Any] = {}  # graphs, by shapes of samples
        self._counts_right = counts_right

    def hold(self, parameters, gradient):
        self.held = parameters, gradient
        self.gw = [s.of(gradient) for s in self.segments]
        for segment, variable in zip(self.segments, self.variables, strict=True):
            alias(variable, segment.of(parameters))

    def _compute(self, x: list, training: bool) -> list:
        values = {id(t): a for t, a in zip(self.inputs, x, strict=True)}
        for node in self.nodes:
            compute(node, values, training)
            if getattr(node.operation, "losses", None):
                raise ValueError(
                    f"layer '{node.operation.name}' calls add_loss, which parts of a model lose: "
                    "make it part of the model's loss, or train without --pipeline and --shard"
                )
        return [tf.identity(values[id(t)]) for t in self.given]

    def _graph(self, x: list, training: bool = False) -> list:
        """`_compute`, as a graph that is made once."""
        training = training and self._heeds_training
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
        others = {id(v.value) for v in self.model.trainable_weights}
        others -= {id(w) for w in self._weights}
        for one in used:
            if id(one) in others:
                raise ValueError(
                    f"weights '{one.name}' are used by a layer that does not have them, after "
                    f"'{self.nodes[0].operation.name}': make them weights of that layer"
                )

    @cached_property
    def _passes(self) -> Passes | None:
        """Both passes as graphs; None if the stage needs a tape."""
        if not self._weights:
            return None
        made = passes_of(
            lambda x: self._compute(x, training=True),
            specs(self.inputs),
            specs(self.given),
            self._floats_in,
            self._weights,
        )
        if made is not None:
            self._check_variables(made.variables)
        return made

    @by_its_cause()
    def forward(self, x: Values, at: At) -> tuple[Values, Any]:
        x = [tf.constant(np.asarray(a, t.dtype)) for a, t in zip(x, self.inputs, strict=True)]
        if not at.training:
            y, saved = self._graph(x), None
        elif self.apart:
            y, saved = self._forward_by_node(x)
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
                address = self.segments[i].of(self.held[0]).ctypes.data
                weights = self._weights[i].read_value()
                check_address(weights, address, self.segments[i].name, "replica")

    @by_its_cause()
    def backward_inputs(self, saved, gy):
        gy = [tf.constant(g) for g in gy]
        if self.apart:
            return self._backward_by_node(saved, gy)
        count = len(self._floats_in)
        if self._passes is not None:
            found = self._passes.backward(gy, saved)
            return [np.asarray(g) for g in found[:count]], found[count:]
        tape, x, y = saved
        sources = [x[i] for i in self._floats_in]
        found = tape.gradient([y[i] for i in self._floats_out], [*sources, *self._weights], gy)
        return [filled(g, a) for g, a in zip(found, sources, strict=False)], found[count:]

    def backward_weights(self, saved, kept):
        if not self.apart:
            for gw, g in zip(self.gw, kept, strict=True):
                if g is not None:
                    gw += np.asarray(tf.convert_to_tensor(g)).reshape(gw.shape)
            return
        for own, (tape, _, y), gy in zip(self._of_node, saved[0], kept, strict=True):
            if own and gy is not None:
                found = tape.gradient(y, [self._weights[i] for i in own], gy)
                for i, g in zip(own, found, strict=True):
                    if g is not None:  # embeddings have tf.IndexedSlices
                        self.gw[i] += np.asarray(tf.convert_to_tensor(g)).reshape(self.gw[i].shape)

    def _forward_by_node(self, x: list) -> tuple[list, Any]:
        values = {id(t): a for t, a in zip(self.inputs, x, strict=True)}
        tapes = []
        for node in self.nodes:
            sources = {
                id(t): values[id(t)]
                for t in node.input_tensors
                if is_float(t.dtype) and id(t) not in self._not_needed
            }
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(list(sources.values()))
                y = compute(node, values, training=True)
            tapes.append((tape, sources, y))
        return [values[id(t)] for t in self.given], (tapes, x)

    def _backward_by_node(self, saved: Any, gy: list) -> tuple[Values, Any]:
        """Gradients of inputs, node by node; keeps the gradient of what each node gives."""
        g = {id(self.given[i]): a for i, a in zip(self._floats_out, gy, strict=True)}
        tapes, x = saved
        kept: list[Any] = []
        for node, (tape, sources, y) in zip(reversed(self.nodes), reversed(tapes), strict=True):
            arrived = [g.pop(id(t), None) for t in node.output_tensors]
            if all(a is None for a in arrived):
                kept.append(None)
                continue
            arrived = [filled(a, b, tf.zeros_like) for a, b in zip(arrived, y, strict=True)]
            kept.append(arrived)
            found = tape.gradient(y, list(sources.values()), arrived)
            for name, more in zip(sources, found, strict=True):
                if more is not None:
                    g[name] = g[name] + more if name in g else more
        gx = [filled(g.get(id(self.inputs[i])), x[i]) for i in self._floats_in]
        return gx, kept[::-1]

    def _loss_and_gradient(self, y: Any, targets: Any) -> tuple[Any, Any]:
        """Mean loss, and the gradient of the sum over samples."""
        with tf.GradientTape() as tape:
            tape.watch(y)
            loss = self.model.compute_loss(x=None, y=targets, y_pred=y, training=True)
        return loss, tape.gradient(loss, y) * tf.cast(tf.shape(y)[0], y.dtype)

    def loss(self, y, targets):
        targets = np.asarray(targets)
        if not self.model._compile_loss.built:  # Keras makes variables for it, not in a graph
            self.model.compute_loss(x=None, y=tf.constant(targets), y_pred=tf.constant(y[0]))
        key = y[0].shape[1:], targets.shape[1:], targets.dtype
        if key not in self._losses:
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


def heeds_training(node: Any) -> bool:
    """Whether a node's layer, or one inside it, may compute something else in training."""
    layers = getattr(node.operation, "_flatten_layers", list)()
    return any(getattr(layer, "_call_has_training_arg", False) for layer in layers)


def filled(g: Any, like: Any, zeros: Any = np.zeros_like) -> Any:
    """A gradient, or zeros where there is none, as an array if `zeros` makes arrays."""
    if g is None:
        return zeros(like)
    return np.asarray(g) if zeros is np.zeros_like else g


def right(y: np.ndarray, targets: np.ndarray) -> float:
    """The share of predictions that are right, for labels, one-hot rows, or numbers 0 and 1."""
    targets = np.asarray(targets)
    if y.shape[-1] == 1:
        return float(((y.reshape(-1) > 0.5) == targets.reshape(-1)).mean())
    labels = targets.argmax(axis=-1) if targets.shape == y.shape else targets.reshape(y.shape[:-1])
    return float((y.argmax(axis=-1) == labels).mean())
