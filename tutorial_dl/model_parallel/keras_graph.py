"""The graph of a functional or sequential Keras model: its nodes in an order of computing.

A node is a layer or an operation with the tensors that it takes and gives.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tutorial_dl.replica.keras_steps import keras, tf


def graph_of(model: Any) -> Any:
    """The functional model with the nodes of `model`; it shares all layers with it."""
    return keras.Model(model.inputs, model.outputs)


def in_order(graph: Any, weights: Sequence[Any] = ()) -> list[Any]:
    """All nodes but inputs, so that each comes after those that it needs.

    Of the nodes that can come next, one without any of these weights does, or the one that has the
    first of them.
    """
    number = {id(v): i for i, v in enumerate(weights)}

    def first(node: Any) -> int:
        own = getattr(node.operation, "trainable_weights", [])
        return min((number[id(v)] for v in own if id(v) in number), default=-1)

    by_depth = graph._nodes_by_depth
    nodes = [n for depth in sorted(by_depth, reverse=True) for n in by_depth[depth]]
    known = {id(t) for t in graph.inputs}
    waiting = {i: n for i, n in enumerate(nodes) if not n.is_input}
    ready: list[tuple[int, int]] = []
    order = []
    while waiting or ready:
        for i, node in list(waiting.items()):
            if all(id(t) in known for t in node.input_tensors):
                heapq.heappush(ready, (first(node), i))
                del waiting[i]
        _, i = heapq.heappop(ready)
        order.append(nodes[i])
        known |= {id(t) for t in nodes[i].output_tensors}
    return order


def compute(node: Any, values: dict[int, Any], training: bool) -> list[Any]:
    """Compute a node from the `values` of tensors by id, and add what it gives to them."""
    args, kwargs = node.arguments.fill_in(values)
    if "training" in getattr(node.operation, "_call_context_args", {}):
        # As a functional model does: also instead of what the node was called with
        kwargs["training"] = training
    outputs = keras.tree.flatten(node.operation(*args, **kwargs))
    values |= {id(t): value for t, value in zip(node.output_tensors, outputs, strict=True)}
    return outputs


def crossing(graph: Any, nodes: list[Any], place: int) -> list[Any]:
    """The tensors that go over a cut before node number `place`."""
    if place == 0:
        return list(graph.inputs)
    given = {id(t): t for t in graph.inputs}
    for node in nodes[:place]:
        given |= {id(t): t for t in node.output_tensors}
    taken = {id(t) for node in nodes[place:] for t in node.input_tensors}
    taken |= {id(t) for t in graph.outputs}
    return [t for name, t in given.items() if name in taken]


def seconds_of(graph: Any, nodes: list[Any], x: Any) -> list[float]:
    """Seconds of the forward pass of each node, operation by operation, the best of three."""
    inputs = x if isinstance(x, tuple) else (x,)
    values = {
        id(t): tf.constant(np.asarray(a), t.dtype)
        for t, a in zip(graph.inputs, inputs, strict=True)
    }
    found = []
    for node in nodes:
        best = np.inf
        for _ in range(3):
            began = time.perf_counter()
            compute(node, values, training=False)
            best = min(best, time.perf_counter() - began)
        found.append(best)
    return found
