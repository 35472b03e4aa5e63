"""`Divided`: from a Keras model to the model of one rank, on its part of each sequence.

The inputs are whole on every rank, (s, t, ...), and so is what depends on inputs alone, also where
positions mix, as in the numbers of positions. What depends on weights has only a part: attention
computes it by a ring, all else position by position.

    tokens -> ones_like -> cumsum -> - 1 -> take the part -> Embedding -> part
                      mixes positions

Layers are the model's own, in both models, but for attention and dropout.
"""

from __future__ import annotations

from typing import Any

from tutorial_dl.model_parallel import keras_context_rules as rules
from tutorial_dl.model_parallel.keras_checks import check_model
from tutorial_dl.model_parallel.keras_graph import Call, Graph, filled, tensors_of
from tutorial_dl.model_parallel.keras_layers import Heads, PartOfDropout, RingHeads, TakePart
from tutorial_dl.model_parallel.keras_tensor import compiled_as
from tutorial_dl.model_parallel.sequences import Sequences
from tutorial_dl.replica.keras.graphs import keras

# With those of models whose layers are cut, too
ATTENTIONS = (keras.layers.MultiHeadAttention, Heads)


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
        graph = self._graph = Graph(model)
        self.length = length_of(model, graph)
        self.sequences = Sequences(team, any(map(is_causal, graph.calls)), self.length)
        self._parts: dict[int, Any] = {}  # tensors of which this rank has a part, by id
        self._taken: dict[int, Any] = {}  # parts of those that are whole
        self._whole: dict[int, tuple[Any, Any]] = {}  # those, by which layer; inputs are not listed
        made = graph.rebuilt(self._call, self._part)
        weights = model.trainable_weights

        class Part(keras.Model):  # its layers may come in another order
            trainable_weights = property(lambda self: list(weights))

        self.local = compiled_as(model, Part(made.input, made.output, name=model.name))

    def _call(self, call: Call, args: tuple, kwargs: dict) -> Any:
        """This rank's part of what a call gives, or all of it, if it depends on inputs alone."""
        layer, given = call.operation, (args, kwargs)
        tensors = tensors_of(given)
        if type(layer) in ATTENTIONS:
            found = self._attention(call, given)
        elif rules.is_dropout(layer) and rules.positions_in(call, self.length):
            dropout = PartOfDropout(
                self._graph.name_for(layer, "part"), layer, 1, self.length, self.sequences.mine
            )
            found = dropout(self._part(tensors[0]))
        elif not any(id(t) in self._parts for t in tensors) and is_plain(layer):
            found = layer(*args, **kwargs)
            whole = keras.tree.flatten(found)
            self._whole |= {id(t): (layer, t) for t in whole}
            return found
        elif rules.by_position(call, self.length):
            given = rules.part_of_constants(call, given, self.length, self.sequences.mine)
            args, kwargs = filled(given, self._part)
            found = layer(*args, **kwargs)
        else:
            rules.refuse(rules.named(layer), rules.instead_of(layer))
        self._parts |= {id(t): t for t in keras.tree.flatten(found)}
        return found

    def _part(self, t: Any) -> Any:
        """This rank's part of a tensor."""
        if id(t) in self._parts:
            return t
        if id(t) not in self._taken:
            layer, _ = self._whole.get(id(t), (t, None))
            if len(t.shape) < 2 or t.shape[1] != self.length:
                what = "an input" if layer is t else rules.named(layer)
                rules.refuse(what, f"it has no {self.length} positions on axis 1: {tuple(t.shape)}")
            take = TakePart(self._graph.name_for(layer, "take_part"), self.sequences.mine)
            self._taken[id(t)] = take(t)
        return self._taken[id(t)]

    def _attention(self, call: Call, given: Any) -> Any:
        arguments, layer = rules.attention(call, *given), call.operation
        ring = self.sequences.ring(bool(arguments.get("use_causal_mask")))
        heads = RingHeads(self._graph.name_for(layer, "ring"), layer, ring)
        names = [name for name in ("query", "value", "key") if arguments.get(name) is not None]
        return heads(**{name: self._part(arguments[name]) for name in names})


def is_plain(operation: Any) -> bool:
    """Whether a layer of Keras or an operation has no weights, and draws nothing."""
    if not isinstance(operation, keras.Layer):
        return True
    draws = any("seed_generator" in v.path for v in operation.non_trainable_variables)
    return rules.of_keras(operation) and not operation.weights and not draws


def is_causal(call: Call) -> bool:
    """Whether a call is an attention that sees no later positions."""
    if type(call.operation) not in ATTENTIONS:
        return False
    return bool(rules.attention(call, call.args, call.kwargs).get("use_causal_mask"))


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
