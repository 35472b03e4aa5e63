"""`Passes`: the forward and the backward pass of a Keras stage as graphs, without a tape.

A tape around a graph takes Python more than a millisecond for each micro-batch. So the gradient is
traced once, together with the outputs, as one graph, which is then cut. What a later part takes
from an earlier one is what that gives besides its results:

    forward(x) = y, held            backward(gy, held) = gradients by x and by the weights

and, where the gradients by x and by the weights are computed apart,

    B(gy, held) = gradients by x, held for W            W(...) = gradients by the weights
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tutorial_dl.replica.keras.graphs import tf

# Operations with a state that they only read, so it does no harm if they run twice.
READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}


class Passes:
    """The graphs; `passes_of` makes them.

    Args:
        traced: The whole graph: (x ..., gy ...) -> outputs, gradients by x, those by weights or
            None, where the outputs do not depend on them.
        inputs: The number of x.
        given: The number of x and gy.
        apart: Whether the gradients by the weights are computed later than those by x.

    Attributes:
        variables: Those that the outputs depend on.
    """

    def __init__(self, traced: Any, inputs: int, given: int, apart: bool) -> None:
        y, gx, gw = traced.structured_outputs
        x, gy, read = traced.inputs[:inputs], traced.inputs[inputs:given], traced.inputs[given:]
        there = [g for g in gw if g is not None]
        held = held_between(y, [*gx, *there], [*gy, *read])
        self.variables = traced.variables
        self._outputs, self._inputs, self._there = len(y), len(gx), [g is not None for g in gw]
        self._forward = called(traced.prune(x, [*y, *held]))
        between = held_between(gx, there, [*gy, *held, *read]) if apart else there
        self._backward, self._given = part_of(traced, [*gy, *held], [*gx, *between])
        self._weights = None
        if apart:
            self._weights, self._kept = part_of(traced, [*gy, *held, *between], there)

    def forward(self, x: Sequence[Any]) -> tuple[list, list]:
        """Outputs, and what the backward passes need."""
        found = self._forward(*x)
        return found[: self._outputs], found[self._outputs :]

    def backward_inputs(self, gy: Sequence[Any], held: Sequence[Any]) -> tuple[list, list]:
        """The gradients by the inputs that are watched, and what `backward_weights` needs.

        Args:
            gy: The gradients by the outputs that are floats.
        """
        given = [*gy, *held]
        found = self._backward(*(given[i] for i in self._given))
        kept = found[self._inputs :]
        if self._weights is not None:
            kept = [([*given, *kept])[i] for i in self._kept]
        return found[: self._inputs], kept

    def backward_weights(self, kept: Sequence[Any]) -> list:
        """The gradients by weights; None stands for those that outputs do not depend on."""
        found = iter(kept if self._weights is None else self._weights(*kept))
        return [next(found) if there else None for there in self._there]


def passes_of(
    compute: Callable[[list], list], inputs: Sequence[Any], outputs: Sequence[Any],
    watched: Sequence[int], weights: Sequence[Any], apart: bool = False,
) -> Passes | None:  # fmt: skip
    """The passes of a function of tensors; None if it does anything but compute.

    Args:
        compute: Gives the outputs, a list of tensors, for a list of inputs.
        inputs, outputs: Their shapes and dtypes, as tf.TensorSpec.
        watched: The numbers of the inputs whose gradients are wanted.
        weights: The variables whose gradients are wanted, at least one.
        apart: As of Passes.
    """
    floats = [i for i, one in enumerate(outputs) if one.dtype.is_floating]

    def both(*given: Any) -> tuple[list, list, list]:
        x, gy = list(given[: len(inputs)]), list(given[len(inputs) :])
        sources = [x[i] for i in watched]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y = compute(x)
        found = tape.gradient([y[i] for i in floats], [*sources, *weights], gy)
        for i, one in enumerate(sources):
            found[i] = tf.zeros_like(one) if found[i] is None else found[i]
        # Embeddings have tf.IndexedSlices
        found = [None if g is None else tf.convert_to_tensor(g) for g in found]
        return y, found[: len(sources)], found[len(sources) :]

    given = [*inputs, *(outputs[i] for i in floats)]
    traced = tf.compat.v1.wrap_function(both, given)
    _, gx, gw = traced.structured_outputs
    if not only_computes(traced.graph) or all(g is None for g in [*gx, *gw]):
        return None
    return Passes(traced, len(inputs), len(given), apart)


def only_computes(graph: Any) -> bool:
    """Whether a graph has no effects, such as random numbers, moving averages and collectives.

    They would be lost or done twice, or in another order. Nested functions may have some.
    """
    return all(one.type in READS or not one.op_def.is_stateful for one in graph.get_operations())


def held_between(outputs: Iterable[Any], gradients: Iterable[Any], given: Iterable[Any]) -> list:
    """The tensors on the way to `outputs` from which, and from those given, `gradients` follow.

    If there is one of an operation's outputs, there are all: `prune` needs them.
    """
    forward: set[str] = set()
    todo = [t.op for t in outputs]
    while todo:
        if (one := todo.pop()).name not in forward:
            forward.add(one.name)
            todo += [*(t.op for t in one.inputs), *one.control_inputs]
    names = {t.name for t in given}

    def ends(t: Any) -> bool:
        # Whole numbers, such as shapes, are computed again: TensorFlow does not hand them over
        here = t.op.name in forward and t.dtype.is_floating
        return t.name in names or here or t.op.type == "Placeholder"

    found = reached(gradients, ends)
    every = {o.name: o for t in found if t.name not in names for o in t.op.outputs}
    return list(every.values())


def reached(results: Iterable[Any], stops: Callable[[Any], bool]) -> list:
    """The tensors, but constants, at which `stops` holds on all ways back from `results`."""
    found, seen, left = [], set(), list(results)
    while left:
        tensor = left.pop()
        if tensor.name in seen or tensor.op.type == "Const":
            continue
        seen.add(tensor.name)
        if stops(tensor):
            found.append(tensor)
        else:
            left += tensor.op.inputs
    return found


def part_of(traced: Any, given: Sequence[Any], results: Sequence[Any]) -> tuple[Any, list[int]]:
    """The graph from some of `given` to `results`, and which of them it needs."""
    names = {t.name for t in given}
    reaches = {t.op.name for t in reached(results, lambda t: t.name in names)}
    needs = [i for i, t in enumerate(given) if t.op.name in reaches]
    return called(traced.prune([given[i] for i in needs], list(results))), needs


def called(function: Any) -> Callable[..., list]:
    """A graph as a function of tensors that is faster to call, because it records no gradient."""
    if not function.outputs:  # the first stage gives no gradient by inputs
        return lambda *given: []
    captured, types = list(function.captured_inputs), [t.dtype for t in function.outputs]
    return lambda *given: tf.raw_ops.StatefulPartitionedCall(
        args=[*given, *captured], Tout=types, f=function
    )
