"""The costs of a Keras model's layers, whole and cut over T ranks, for `simulate.cuts.propose`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

from tutorial_dl.model_parallel.keras_context import ATTENTIONS, Divided
from tutorial_dl.model_parallel.keras_graph import Call, Graph
from tutorial_dl.model_parallel.keras_layers import Exchange, Leave
from tutorial_dl.model_parallel.keras_stages import KerasParts
from tutorial_dl.model_parallel.keras_tensor import Cut
from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.keras.graphs import keras
from tutorial_dl.replica.keras.replica import KerasReplica
from tutorial_dl.simulate.cuts import LayerCost


class Measured:
    """A model whose layers were timed on a batch, on this rank alone.

    Args:
        replica: The whole model.
        batch: Inputs and targets.
        whole, less: Seconds of a gradient on this batch, and on its first `samples` samples.
    """

    def __init__(
        self, replica: KerasReplica, batch: Batch, whole: float, less: float, samples: int
    ) -> None:
        self.replica, self.model = replica, replica.model
        x = batch[0]
        count = len(keras.tree.flatten(x)[0])
        per_sample = max(whole - less, 0.0) / max(count - samples, 1)
        per_call = max(whole - per_sample * count, 0.0)
        graph = Graph(self.model)
        seconds = graph.seconds(x)
        total = sum(seconds) or 1.0
        # Seconds per call and per sample, and elements given; the backward pass is taken to be in
        # proportion to the forward one.
        self._shares = {
            node.operation.name: (
                per_call * s / total, per_sample * s / total, elements(node.output_tensors)
            )
            for node, s in zip(graph.calls, seconds, strict=True)
        }  # fmt: skip
        self.weights = replica.parameters.size

    @property
    def no_pipeline(self) -> str | None:
        """Why the model can't be a pipeline."""
        try:
            KerasParts(self.replica)
        except ValueError as error:
            return str(error)
        return None

    @property
    def attends(self) -> bool:
        """Whether the model has an attention, so that dividing sequences may help it."""
        return any(type(node.operation) in ATTENTIONS for node in Graph(self.model).calls)

    def no_context(self, parts: int) -> str | None:
        """Why its sequences can't be divided over `parts` ranks."""
        try:
            Divided(self.model, SimpleNamespace(size=parts, rank=0))
        except ValueError as error:
            return str(error)
        return None

    def costs(self, tensor: int, sequence: bool = False) -> Sequence[LayerCost] | str:
        """The layers of one of `tensor` ranks, or why the model can't be cut so.

        `sequence`: in the sequence-parallel form, as on the first rank.
        """
        model, cut = self.model, ()
        if tensor > 1:
            try:
                made = Cut(model, SimpleNamespace(size=tensor, rank=0), sequence=sequence)
            except ValueError as error:
                return str(error)
            model = made.local
            own = {id(layer) for layer in self.model._flatten_layers()}
            cut = {node.operation.name for node in Graph(model).calls
                   if isinstance(node.operation, keras.Layer)
                   and id(node.operation) not in own}  # fmt: skip
        graph = Graph(model)
        found, after_weights = [], set()  # tensors that need a gradient
        for place, node in enumerate(graph.calls):
            name, operation = node.operation.name, node.operation
            given = elements(node.output_tensors)
            call, sample, whole = self._shares.get(name, (0.0, 0.0, given))
            part = 1 / tensor if name in cut else given / max(whole, 1)  # of a split tensor
            weights = getattr(operation, "trainable_weights", [])
            needed = any(id(t) in after_weights for t in node.input_tensors)
            if weights or needed:
                after_weights |= {id(t) for t in node.output_tensors}
            summed, sums = exchanged(node, needed)
            found.append(
                LayerCost(
                    name,
                    call,
                    sample * part,
                    sum(prod(v.shape) for v in weights),
                    0 if moves(operation) == ("same", "sum") else given,
                    summed,
                    sums,
                    elements(graph.crossing(place)),
                    keys_of(node),
                )
            )
        return found


def keys_of(node: Any) -> int:
    """Numbers per sample in the keys and values of an attention; 0 for other nodes."""
    layer = node.operation
    if type(layer) not in ATTENTIONS:
        return 0
    positions = node.input_tensors[-1].shape[1] or 1
    return positions * layer.num_heads * (layer.key_dim + layer.value_dim)


def moves(operation: Any) -> tuple[str, str]:
    """What is done with a tensor between ranks, forward and backward."""
    known = isinstance(operation, Exchange)
    return (operation.forward, operation.backward) if known else ("same", "same")


def exchanged(node: Call, needed: bool) -> tuple[int, int]:
    """(Elements that ranks sum in a node, forward and backward, in how many calls).

    An allgather or a reduce-scatter sends half as much as a sum. `needed`: inputs need a gradient.
    """
    forward, backward = moves(node.operation)
    whole = max(elements(node.output_tensors), elements(node.input_tensors))
    sent = {"sum": whole, "gather": whole // 2, "sum_part": whole // 2}
    done = [forward] + [backward] * (needed or isinstance(node.operation, Leave))
    done = [one for one in done if one in sent]
    return sum(sent[one] for one in done), len(done)


def elements(tensors: Sequence[Any]) -> int:
    """Numbers per sample in these tensors; sizes that are not known count as 1."""
    floats = [t for t in tensors if keras.backend.is_float_dtype(t.dtype)]
    return sum(prod(n or 1 for n in t.shape[1:]) for t in floats)
