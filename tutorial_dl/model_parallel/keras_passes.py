"""`Passes`: the forward and the backward pass of a Keras stage as two graphs, without a tape.

A tape around a graph takes Python more than a millisecond for each micro-batch. So the gradient is
traced once, together with the outputs, as one graph, which is then cut in two. What the backward
part takes from the forward part is what the forward graph gives besides the outputs, and what is
held from F to W:

    forward(x) = y, held            backward(gy, held) = gradients by x and by the weights
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tutorial_dl.replica.keras.graphs import tf

# Operations with a state that they only read, so it does no harm if they run twice.
READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}


class Passes:
    """The two graphs; `passes_of` makes them.

    Args:
        traced: The whole graph: (x ..., gy ...) -> outputs, gradients or None.
        inputs: The number of x.
        given: The number of x and gy.

    Attributes:
        variables: Those that the outputs depend on.
    """

    def __init__(self, traced: Any, inputs: int, given: int) -> None:
        y, found = traced.structured_outputs
        x, gy, weights = traced.inputs[:inputs], traced.inputs[inputs:given], traced.inputs[given:]
        gradients = [g for g in found if g is not None]
        held = held_between(y, gradients, [*gy, *weights])
        self.variables = traced.variables
        self._outputs, self._there = len(y), [g is not None for g in found]
        self._forward = called(traced.prune(x, [*y, *held]))
        self._backward = called(traced.prune([*gy, *held], gradients))

    def forward(self, x: Sequence[Any]) -> tuple[list, list]:
        """Outputs, and what `backward` needs."""
        found = self._forward(*x)
        return found[: self._outputs], found[self._outputs :]

    def backward(self, gy: Sequence[Any], held: Sequence[Any]) -> list:
        """The gradients by the inputs that are watched, then by weights.

        None stands for weights that the outputs do not depend on.

        Args:
            gy: The gradients by the outputs that are floats.
        """
        found = iter(self._backward(*gy, *held))
        return [next(found) if there else None for there in self._there]


def passes_of(
    compute: Callable[[list], list], inputs: Sequence[Any], outputs: Sequence[Any],
    watched: Sequence[int], weights: Sequence[Any],
) -> Passes | None:  # fmt: skip
    """Both passes of a function of tensors; None if it does anything but compute.

    Args:
        compute: Gives the outputs, a list of tensors, for a list of inputs.
        inputs, outputs: Their shapes and dtypes, as tf.TensorSpec.
        watched: The numbers of the inputs whose gradients are wanted.
        weights: The variables whose gradients are wanted, at least one.
    """
    floats = [i for i, one in enumerate(outputs) if one.dtype.is_floating]

    def both(*given: Any) -> tuple[list, list]:
        x, gy = list(given[: len(inputs)]), list(given[len(inputs) :])
        sources = [x[i] for i in watched]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y = compute(x)
        found = tape.gradient([y[i] for i in floats], [*sources, *weights], gy)
        for i, one in enumerate(sources):
            found[i] = tf.zeros_like(one) if found[i] is None else found[i]
        # Embeddings have tf.IndexedSlices
        return y, [None if g is None else tf.convert_to_tensor(g) for g in found]

    given = [*inputs, *(outputs[i] for i in floats)]
    traced = tf.compat.v1.wrap_function(both, given)
    if not only_computes(traced.graph) or all(g is None for g in traced.structured_outputs[1]):
        return None
    return Passes(traced, len(inputs), len(given))


def only_computes(graph: Any) -> bool:
    """Whether a graph has no effects, such as random numbers, moving averages and collectives.

    They would be lost or done twice, or in another order. Nested functions may have some.
    """
    return all(one.type in READS or not one.op_def.is_stateful for one in graph.get_operations())


def held_between(outputs: Iterable[Any], gradients: Iterable[Any], given: Iterable[Any]) -> list:
    """The tensors on the way to `outputs` from which, and from those given, `gradients` follow."""
    forward: set[str] = set()
    todo = [t.op for t in outputs]
    while todo:
        if (one := todo.pop()).name not in forward:
            forward.add(one.name)
            todo += [*(t.op for t in one.inputs), *one.control_inputs]
    held, seen, left = [], {t.name for t in given}, list(gradients)
    while left:
        tensor = left.pop()
        if tensor.name in seen or tensor.op.type == "Const":
            continue
        seen.add(tensor.name)
        if tensor.op.name in forward or tensor.op.type == "Placeholder":
            held.append(tensor)
        else:
            left += tensor.op.inputs
    return held


def called(function: Any) -> Callable[..., list]:
    """A graph as a function of tensors that is faster to call, because it records no gradient."""
    captured, types = list(function.captured_inputs), [t.dtype for t in function.outputs]
    return lambda *given: tf.raw_ops.StatefulPartitionedCall(
        args=[*given, *captured], Tout=types, f=function
    )
