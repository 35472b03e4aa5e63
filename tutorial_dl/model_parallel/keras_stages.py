"""`KerasParts`: a Keras model of layers that can be cut into stages, computed by TensorFlow.

A functional or sequential model is a graph of nodes, each a layer or operation with tensors that it
takes and gives. A cut divides the nodes, in an order in which they can be computed; what goes over
a boundary are all tensors that nodes before it give and nodes after it take.

Activations are held by tapes, from the forward pass to the backward pass, and not computed again.
Where W follows B at once, the whole stage is one graph, and B computes both. Where it does not
(zero-bubble schedules), every node has a tape of its own, and B and W are computed apart, operation
by operation.

Refused by name, because micro-batches would not give what the whole batch gives, or because no
stage can compute it alone: batch normalisation and other layers with statistics, dropout, masks,
regularisers, constraints, mixed precision, several outputs, weights shared over stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tutorial_dl.model_parallel.keras_graph import (
    compute,
    crossing,
    graph_of,
    in_order,
    seconds_of,
)
from tutorial_dl.model_parallel.stages import Boundary, Parts, Stage, Values
from tutorial_dl.replica.base import Brought, Segment, written
from tutorial_dl.replica.keras_losses import why_masked
from tutorial_dl.replica.keras_own_step import has_own_step
from tutorial_dl.replica.keras_saving import trained_by
from tutorial_dl.replica.keras_steps import keras, tf
from tutorial_dl.replica.keras_tensorflow import KerasReplica
from tutorial_dl.replica.keras_variables import as_graph, check_address
from tutorial_dl.replica.layers import At
from tutorial_dl.tensorflow_chatter import quiet


def alias(variable: Any, view: np.ndarray) -> None:
    """Let a variable use this memory; see replica/keras_variables.py."""
    variable.assign(tf.experimental.dlpack.from_dlpack(view.__dlpack__()))


def is_float(dtype: str) -> bool:
    return np.dtype(dtype).kind == "f"


class KerasParts(Parts):
    """The nodes of a Keras model's graph.

    Args:
        replica: The model.
        what: In words, what computes it stage by stage. All but a pipeline compute whole batches.

    Raises:
        ValueError: If the model has something that this can't compute exactly, with the layer's
            name.
    """

    def __init__(self, replica: KerasReplica, what: str = "a pipeline") -> None:
        self.replica, self.model, self.what = replica, replica.model, what
        self.made: list[KerasStage] = []  # this rank's stages
        check(replica, what, in_pieces=what == "a pipeline")
        self.segments, self.dtype = replica.segments, replica.dtype
        self.graph = graph_of(self.model)
        variables = self.model.trainable_weights
        self._number = {id(v): i for i, v in enumerate(variables)}
        self.nodes = in_order(self.graph, lambda node: next(iter(self._own(node)), None))
        self.names = [node.operation.name for node in self.nodes]
        self.metrics = ("loss", "accuracy") if accuracy(self.model) else ("loss",)
        self._starts = self._weights()

    def _own(self, node: Any) -> list[int]:
        """The numbers of a node's trainable weights."""
        found = getattr(node.operation, "trainable_weights", [])
        return sorted(self._number[id(v)] for v in found)

    def _weights(self) -> list[int]:
        """Where the weights of each node begin in the vectors, and where the last ones end."""
        starts, seen = [], -1
        users: dict[int, str] = {}
        ends = [*(s.offset for s in self.segments), self.replica.parameters.size]
        for node in self.nodes:
            starts.append(ends[seen + 1])
            for number in self._own(node):
                if number in users or number != seen + 1:
                    name = self.segments[number].name
                    raise ValueError(
                        f"weights '{name}' are used by layers '{users.get(number, '?')}' and "
                        f"'{node.operation.name}': {self.what} needs layers with weights of their "
                        "own, in their order"
                    )
                users[number], seen = node.operation.name, number
        return [*starts, ends[-1]]

    def weights_before(self, layer):
        return self._starts[layer]

    def crossing(self, place: int) -> list[Any]:
        return crossing(self.graph, self.nodes, place)

    def outputs(self, x, places):
        return [[Boundary(tuple(t.shape[1:]), t.dtype) for t in self.crossing(i)] for i in places]

    def stage(self, first, last):
        begin, end = self._starts[first], self._starts[last]
        numbers = [i for node in self.nodes[first:last] for i in self._own(node)]
        own = [self.segments[i] for i in numbers]
        made = KerasStage(
            self.nodes[first:last],
            (self.crossing(first), self.crossing(last)),
            tuple(Segment(s.name, s.offset - begin, s.shape) for s in own),
            end - begin,
            [self.model.trainable_weights[i] for i in numbers],
            self.model,
        )
        self.made.append(made)
        return made

    def costs(self, x):
        return seconds_of(self.graph, self.nodes, x)

    def own_optimizer(self, given: Any = None) -> Brought | None:
        return self.replica.own_optimizer(given)

    def forget(self, stages):
        self._nothing = np.zeros(max(s.size for s in self.segments) + 64, self.dtype)
        self.replica.parameters = self.replica.gradient = np.zeros(0, self.dtype)
        self._leave_others()

    def _leave_others(self) -> None:
        """Weights of other ranks' stages get memory that is never written, so takes no room."""
        start = -self._nothing.ctypes.data % 64 // self.dtype.itemsize
        mine = {id(v) for stage in self.made for v in stage.variables}
        for segment, variable in zip(self.segments, self.model.trainable_weights, strict=True):
            if id(variable) not in mine:
                view = self._nothing[start : start + segment.size].reshape(segment.shape)
                alias(variable, view)

    def save(self, path: Path | str, parameters: np.ndarray, *trained: Any) -> None:
        given = trained[0] if trained else None
        if hasattr(self.replica, "save_whole"):  # layers are cut, too
            try:
                self.replica.save_whole(path, parameters, given)
            finally:
                self._hold_again()
            return
        with (
            self._all_of(parameters), written(self.replica, path) as part, quiet(),
            trained_by(self.replica, given, path),
        ):  # fmt: skip
            self.model.save(part)

    @contextmanager
    def _all_of(self, parameters: np.ndarray) -> Iterator[None]:
        """Within, the model's weights are these."""
        for segment, variable in zip(self.segments, self.model.trainable_weights, strict=True):
            variable.assign(segment.of(parameters))
        try:
            yield
        finally:
            self._hold_again()

    def _hold_again(self) -> None:
        for stage in self.made:
            stage.hold(*stage.held)
        self._leave_others()


class KerasStage(Stage):
    """Nodes of a Keras model, with their variables in memory of ours.

    `apart` says whether B and W are computed apart; a Pipeline sets it by its schedule.
    """

    apart = True

    def __init__(self, nodes, boundary, segments, size, variables, model) -> None:
        self.nodes, self.segments, self.size = nodes, segments, size
        self.inputs, self.given = boundary
        self.variables, self.model = variables, model
        self._weights = [v.value for v in variables]
        place = {id(v): i for i, v in enumerate(variables)}
        self._of_node = [
            [place[id(v)] for v in getattr(node.operation, "trainable_weights", [])]
            for node in nodes
        ]
        self._floats_in = [i for i, t in enumerate(self.inputs) if is_float(t.dtype)]
        self._floats_out = [i for i, t in enumerate(self.given) if is_float(t.dtype)]
        self._heeds_training = any(map(heeds_training, nodes))
        self._steps = 0
        self._graphs: dict[bool, Any] = {}  # by whether it trains
        self._loss_graph = as_graph(self._loss_and_gradient, reduce_retracing=True)

    def hold(self, parameters, gradient):
        self.held = parameters, gradient
        self.gw = [s.of(gradient) for s in self.segments]
        for segment, variable in zip(self.segments, self.variables, strict=True):
            alias(variable, segment.of(parameters))

    def _compute(self, x: list, training: bool) -> list:
        values = {id(t): a for t, a in zip(self.inputs, x, strict=True)}
        for node in self.nodes:
            compute(node, values, training)
        return [tf.identity(values[id(t)]) for t in self.given]

    def _graph(self, x: list, training: bool = False) -> list:
        """`_compute`, as a graph that is made once."""
        training = training and self._heeds_training
        if training not in self._graphs:

            def stage(x: list) -> list:
                return self._compute(x, training)

            specs = [tf.TensorSpec(t.shape, t.dtype) for t in self.inputs]
            # TensorFlow warns of many traces of one function if they are made by calls.
            made = self._graphs[training] = as_graph(stage).get_concrete_function(specs)
            # (Weights of frozen layers are in no vector, and so are always there.)
            others = {id(v.value) for v in self.model.trainable_weights}
            others -= {id(w) for w in self._weights}
            for one in made.variables:
                if id(one) in others:
                    raise ValueError(
                        f"weights '{one.name}' are used by a layer that does not have them, after "
                        f"'{self.nodes[0].operation.name}': make them weights of that layer"
                    )
        return self._graphs[training](x)

    def forward(self, x: Values, at: At) -> tuple[Values, Any]:
        x = [tf.constant(np.asarray(a, t.dtype)) for a, t in zip(x, self.inputs, strict=True)]
        if not at.training:
            y, saved = self._graph(x), None
        elif self.apart:
            y, saved = self._forward_by_node(x)
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

    def backward_inputs(self, saved, gy):
        gy = [tf.constant(g) for g in gy]
        if self.apart:
            return self._backward_by_node(saved, gy)
        tape, x, y = saved
        sources = [x[i] for i in self._floats_in]
        found = tape.gradient([y[i] for i in self._floats_out], [*sources, *self._weights], gy)
        gx = [filled(g, a) for g, a in zip(found, sources, strict=False)]
        return gx, found[len(sources) :]

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
            sources = {id(t): values[id(t)] for t in node.input_tensors if is_float(t.dtype)}
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
        with tf.GradientTape() as tape:
            tape.watch(y)
            loss = self.model.compute_loss(x=None, y=targets, y_pred=y, training=True)
        return loss, tape.gradient(loss, y)

    def loss(self, y, targets):
        samples = len(y[0])
        if not self.model._compile_loss.built:  # Keras makes variables for it, not in a graph
            self.model.compute_loss(x=None, y=tf.constant(targets), y_pred=tf.constant(y[0]))
        loss, g = self._loss_graph(tf.constant(y[0]), tf.constant(targets))
        sums = {"loss": float(loss) * samples}
        if accuracy(self.model):
            sums["accuracy"] = float(right(y[0], targets)) * samples
        return sums, [np.asarray(g) * y[0].dtype.type(samples)]

    def result(self, y):
        return y[0]


def heeds_training(node: Any) -> bool:
    """Whether a node's layer, or one inside it, may compute something else in training."""
    layers = getattr(node.operation, "_flatten_layers", list)()
    return any(getattr(layer, "_call_has_training_arg", False) for layer in layers)


def filled(g: Any, like: Any, zeros: Any = np.zeros_like) -> Any:
    """A gradient, or zeros where there is none, as an array if `zeros` makes arrays."""
    if g is None:
        return zeros(like)
    return np.asarray(g) if zeros is np.zeros_like else g


def accuracy(model: Any) -> bool:
    """Whether the model was compiled with accuracy, the one metric that a pipeline computes."""
    asked = keras.tree.flatten(model.get_compile_config().get("metrics") or [])
    return asked in (["accuracy"], ["acc"])


def right(y: np.ndarray, targets: np.ndarray) -> float:
    """The share of predictions that are right, for labels, one-hot rows, or numbers 0 and 1."""
    targets = np.asarray(targets)
    if y.shape[-1] == 1:
        return float(((y.reshape(-1) > 0.5) == targets.reshape(-1)).mean())
    labels = targets.argmax(axis=-1) if targets.shape == y.shape else targets.reshape(y.shape[:-1])
    return float((y.argmax(axis=-1) == labels).mean())


def check(replica: KerasReplica, what: str = "a pipeline", in_pieces: bool = True) -> None:
    """Raise ValueError, with the layer's name, if `what` can't compute a model exactly by stages.

    `in_pieces`: a batch is computed in micro-batches.
    """
    model = replica.model

    def refuse(which: str, instead: str) -> None:
        raise ValueError(f"{what} can't compute {which}: {instead}")

    layers = list(model._flatten_layers())
    if not getattr(model, "inputs", None) or has_own_step(model):
        refuse(f"model '{model.name}'", "it takes a functional or sequential one")
    if isinstance(getattr(model, "_inputs_struct", None), dict):
        refuse(f"model '{model.name}'", "it takes inputs as a list, not as a dictionary")
    for layer in layers:
        name = f"layer '{layer.name}'"
        if in_pieces and getattr(layer, "seed_generator", None) is not None:
            refuse(name, "Keras draws its masks batch by batch, which micro-batches change")
        floats = [v for v in layer.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)]
        if in_pieces and floats and layer is not model:
            batch = type(layer).__name__ == "BatchNormalization"
            refuse(
                name,
                "its statistics are of a batch; use LayerNormalization"
                if batch
                else "it has weights that are not trained, which a pipeline can't hold",
            )
        if layer.compute_dtype != layer.variable_dtype:
            refuse(name, f"it computes in {layer.compute_dtype}, its weights are float32")
        if getattr(layer, "stateful", False):
            refuse(name, "it keeps states from batch to batch")
        if getattr(layer, "activity_regularizer", None) is not None:
            refuse(name, "it has a regulariser of its outputs; use weight decay")
    if words := why_masked(model):
        refuse(*words)
    if model.losses:
        refuse(f"model '{model.name}'", "it has regularisers or add_loss; use weight decay")
    if replica.constrained:
        refuse(f"model '{model.name}'", "its weights have constraints")
    if not in_pieces:
        return
    if len(model.outputs) != 1:
        refuse(f"model '{model.name}'", "it takes one output")
    asked = keras.tree.flatten(model.get_compile_config().get("metrics") or [])
    if asked and not accuracy(model):
        refuse(f"metrics {asked}", "compile with metrics=['accuracy'] or none, and evaluate later")
