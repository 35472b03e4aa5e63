"""`Divided`: from a Keras model to the model of one rank, on its part of each sequence.

The inputs are whole on every rank, (s, t, ...). Each tensor after them has two forms, of which only
those that are needed are computed: whole, the same on all ranks, or this rank's part. What depends
on weights has only a part: attention computes it by a ring, all else position by position. What
depends on inputs alone may be whole, also where positions mix, as in the numbers of positions:

    tokens -> ones_like -> cumsum -> - 1 -> take the part -> Embedding -> part
                      mixes positions

Layers are the model's own, in both models, but for attention and dropout.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorial_dl.model_parallel import keras_context_rules as rules
from tutorial_dl.model_parallel.keras_context_layers import DropoutOfPart, RingHeads, TakePart
from tutorial_dl.model_parallel.keras_graph import graph_of, in_order
from tutorial_dl.model_parallel.keras_tensor import check_model, compiled_as
from tutorial_dl.model_parallel.keras_tensor_layers import Heads, PartOfDropout
from tutorial_dl.model_parallel.sequences import Sequences
from tutorial_dl.replica.keras_steps import keras

# With those of models whose layers are cut, too
ATTENTIONS = (keras.layers.MultiHeadAttention, Heads)


def is_dropout(operation: Any) -> bool:
    """Whether it is a Dropout of Keras's (a user's subclass may compute anything), or a part."""
    ours = type(operation) is PartOfDropout
    return ours or (isinstance(operation, keras.layers.Dropout) and rules.of_keras(operation))


class Divided:
    """The model of this rank.

    Args:
        model: The model of whole sequences, functional or sequential, the same on all ranks of
            `team`; it is built. All inputs have the same number of positions, on axis 1, and so
            has its output.
        team: The ranks that share each sequence, C.

    Attributes:
        local: The model of this rank, compiled as `model` is, with the same weights in the same
            order. It takes whole inputs, and gives its part of the outputs.
        sequences: This rank's part.

    Raises:
        ValueError: If a layer can't compute a part, with its name and what would work.
    """

    def __init__(self, model: Any, team: Any) -> None:
        check_model(model, "context parallelism")
        self.model, self.graph = model, graph_of(model)
        self.length = length_of(model, self.graph)
        self.nodes = in_order(self.graph)
        self.sequences = Sequences(team, any(map(is_causal, self.nodes)))
        self.sequences.begin(self.length)
        self._parts: dict[int, Any] = {}  # tensors of the whole model by id: this rank's part
        self._wholes = {id(t): t for t in self.graph.inputs}  # ... and whole
        self._makers = {id(t): node for node in self.nodes for t in node.output_tensors}
        self._names: dict[str, int] = {}
        for node in self.nodes:
            self._compute(node)
        for t in self.graph.outputs:
            self.part(t)
        self.local = self._model()

    def _model(self) -> Any:
        if hasattr(self.model, "_inputs_struct"):
            structs = self.model._inputs_struct, self.model._outputs_struct
        else:  # a Sequential
            structs = self.graph.inputs[0], self.graph.outputs[0]
        outputs = keras.tree.map_structure(self.part, structs[1])
        weights = self.model.trainable_weights

        class Part(keras.Model):  # its layers may come in another order
            trainable_weights = property(lambda self: list(weights))

        return compiled_as(self.model, Part(structs[0], outputs, name=self.model.name))

    def _compute(self, node: Any) -> None:
        """Compute this rank's part of what a node gives, unless it can only be computed whole."""
        operation = node.operation
        if type(operation) in ATTENTIONS:
            self._attention(node)
        elif is_dropout(operation) and positions_in(node, self.length):
            layer = DropoutOfPart(self._named(operation, "part"), operation, self.sequences)
            self._give(node, [layer(self.part(node.input_tensors[0]))])
        elif rules.by_position(node, self.length):
            take = lambda array, axis: np.take(array, self.sequences.mine, axis)  # noqa: E731
            args, kwargs = rules.part_of_constants(node, self.length, take)
            args, kwargs = self._filled((args, kwargs), self.part)
            self._give(node, keras.tree.flatten(operation(*args, **kwargs)))
        elif not self.by_inputs(node):
            rules.refuse(rules.named(operation), rules.instead_of(operation))

    def _give(self, node: Any, outputs: list[Any]) -> None:
        self._parts |= dict(zip(map(id, node.output_tensors), outputs, strict=True))

    def _filled(self, structure: Any, form: Any) -> Any:
        """A structure of arguments, its tensors in this form."""
        fill = lambda a: form(a) if isinstance(a, keras.KerasTensor) else a  # noqa: E731
        return keras.tree.map_structure(fill, structure)

    def _named(self, operation: Any, suffix: str) -> str:
        """A name of its own for a layer that takes the place of another one."""
        name = f"{operation.name}_{suffix}"
        self._names[name] = number = self._names.get(name, 0) + 1
        return name if number == 1 else f"{name}_{number}"

    def part(self, t: Any) -> Any:
        """This rank's part of a tensor of the whole model."""
        if id(t) not in self._parts:
            maker = self._makers.get(id(t))
            if len(t.shape) < 2 or t.shape[1] != self.length:
                what = "an input" if maker is None else rules.named(maker.operation)
                rules.refuse(what, f"it has no {self.length} positions on axis 1: {tuple(t.shape)}")
            name = self._named(self.model if maker is None else maker.operation, "take_part")
            self._parts[id(t)] = TakePart(name, self.sequences)(self.whole(t))
        return self._parts[id(t)]

    def whole(self, t: Any) -> Any:
        """A tensor that depends on inputs alone, whole."""
        if id(t) not in self._wholes:
            node = self._makers[id(t)]
            args, kwargs = self._filled((node.arguments.args, node.arguments.kwargs), self.whole)
            outputs = keras.tree.flatten(node.operation(*args, **kwargs))
            self._wholes |= dict(zip(map(id, node.output_tensors), outputs, strict=True))
        return self._wholes[id(t)]

    def by_inputs(self, node: Any) -> bool:
        """Whether what a node gives depends on inputs alone, not on weights or random numbers."""
        operation = node.operation
        if isinstance(operation, keras.Layer) and (
            operation.weights
            or any("seed_generator" in v.path for v in operation.non_trainable_variables)
            or not rules.of_keras(operation)
        ):
            return False
        makers = [self._makers.get(id(t)) for t in node.input_tensors]
        return all(maker is None or self.by_inputs(maker) for maker in makers)

    def _attention(self, node: Any) -> None:
        given, layer = rules.attention(node), node.operation
        ring = self.sequences.ring(bool(given.get("use_causal_mask")))
        heads = RingHeads(self._named(layer, "ring"), layer, ring, dtype=layer.dtype_policy)
        names = [name for name in ("query", "value", "key") if given.get(name) is not None]
        self._give(node, [heads(**{name: self.part(given[name]) for name in names})])


def positions_in(node: Any, length: int) -> bool:
    return all(len(t.shape) > 1 and t.shape[1] == length for t in node.input_tensors)


def is_causal(node: Any) -> bool:
    """Whether a node is an attention that sees no later positions."""
    if type(node.operation) not in ATTENTIONS:
        return False
    return bool(rules.attention(node).get("use_causal_mask"))


def length_of(model: Any, graph: Any) -> int:
    """The number of positions of all inputs; ValueError if it is not known, or not one."""
    for t in graph.inputs:
        if len(t.shape) < 2 or t.shape[1] is None:
            rules.refuse(
                f"model '{model.name}'",
                f"input '{t.name}' must have a fixed number of positions, (samples, positions, "
                f"...), got {tuple(t.shape)}",
            )
    lengths = {t.shape[1] for t in graph.inputs}
    if len(lengths) > 1:
        many = " and ".join(map(str, sorted(lengths)))
        rules.refuse(f"model '{model.name}'", f"its inputs have {many} positions; give them one")
    if len(graph.outputs) > 1:
        rules.refuse(f"model '{model.name}'", f"it has {len(graph.outputs)} outputs; use one")
    return lengths.pop()
