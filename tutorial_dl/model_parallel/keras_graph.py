"""`Graph`: what a functional or sequential Keras model calls, in order, by Keras's `clone_model`.

`clone_model` calls a model's layers and operations once more, one after the other, by a function
of ours. Here it notes the calls; a cut (keras_tensor.py, keras_context.py) makes others of them.
"""

from __future__ import annotations

import heapq
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np

from tutorial_dl.replica.keras.graphs import keras, tf


class Call(NamedTuple):
    """A call of a layer or of an operation, with the tensors that it takes and gives."""

    operation: Any
    args: tuple
    kwargs: dict[str, Any]
    input_tensors: list[Any]
    output_tensors: list[Any]

    @property
    def constants(self) -> list[Any]:
        """All arguments but tensors."""
        every = keras.tree.flatten((self.args, self.kwargs))
        return [one for one in every if not isinstance(one, keras.KerasTensor)]

    def given(self, values: Mapping[int, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments, with these values of the tensors, by id."""
        return filled((self.args, self.kwargs), lambda t: values[id(t)])


def filled(structure: Any, form: Callable[[Any], Any]) -> Any:
    """The structure, with `form(t)` for each tensor t of a graph."""
    fill = lambda one: form(one) if isinstance(one, keras.KerasTensor) else one  # noqa: E731
    return keras.tree.map_structure(fill, structure)


def tensors_of(structure: Any) -> list[Any]:
    return [t for t in keras.tree.flatten(structure) if isinstance(t, keras.KerasTensor)]


class Graph:
    """The calls of a model.

    Attributes:
        calls: In an order in which they can be computed: of those that can come next, one without
            trainable weights does, or the one that has the first of them.
        inputs, outputs: The model's tensors.
    """

    def __init__(self, model: Any) -> None:
        one = isinstance(model, keras.Sequential)
        ends = (model.inputs[0], model.outputs[0]) if one else (model.input, model.output)
        self.model, self._calls = keras.Model(*ends, name=model.name), []

        def note(operation: Any, *args: Any, **kwargs: Any) -> Any:
            found = operation(*args, **kwargs)
            taken = tensors_of((args, kwargs))
            self._calls.append(Call(operation, args, kwargs, taken, keras.tree.flatten(found)))
            return found

        again = self._cloned(note)
        self.inputs, self.outputs = again.inputs, again.outputs
        self._names = {one.name for one in again.operations}
        self.calls = self._in_order(model.trainable_weights)

    def _cloned(self, call: Callable[..., Any]) -> Any:
        return keras.models.clone_model(
            self.model, clone_function=lambda layer: layer, call_function=call
        )

    def rebuilt(self, call: Callable[[Call, tuple, dict], Any], ends: Callable[[Any], Any]) -> Any:
        """Another model: what `call(the call here, args, kwargs)` computes in place of each call.

        `ends(t)` replaces its outputs.
        """
        calls = iter(self._calls)
        made = self._cloned(lambda _, *args, **kwargs: call(next(calls), args, kwargs))
        outputs = keras.tree.map_structure(ends, made.output)
        return keras.Model(made.input, outputs, name=self.model.name)

    def name_for(self, one: Any, suffix: str) -> str:
        """A name that no layer has, for a layer of ours beside `one` of the model."""
        names = (f"{one.name}_{suffix}{more}" for more in chain([""], map("_{}".format, count(2))))
        name = next(name for name in names if name not in self._names)
        self._names.add(name)
        return name

    def _in_order(self, weights: Sequence[Any]) -> list[Call]:
        number = {id(v): i for i, v in enumerate(weights)}

        def first(call: Call) -> int:
            own = getattr(call.operation, "trainable_weights", [])
            return min((number[id(v)] for v in own if id(v) in number), default=-1)

        known = {id(t) for t in self.inputs}
        waiting = dict(enumerate(self._calls))
        ready: list[tuple[int, int]] = []
        order = []
        while waiting or ready:
            for i, call in list(waiting.items()):
                if all(id(t) in known for t in call.input_tensors):
                    heapq.heappush(ready, (first(call), i))
                    del waiting[i]
            _, i = heapq.heappop(ready)
            order.append(self._calls[i])
            known |= {id(t) for t in self._calls[i].output_tensors}
        return order

    def crossing(self, place: int) -> list[Any]:
        """The tensors that go over a cut before call number `place`."""
        if place == 0:
            return list(self.inputs)
        given = {id(t): t for t in self.inputs}
        for call in self.calls[:place]:
            given |= {id(t): t for t in call.output_tensors}
        taken = {id(t) for call in self.calls[place:] for t in call.input_tensors}
        taken |= {id(t) for t in self.outputs}
        return [t for name, t in given.items() if name in taken]

    def between(self, first: int, last: int) -> Any:
        """The model of calls [first, last), from cut to cut; it shares all layers."""
        given = self.crossing(first)
        inputs = [keras.Input(batch_shape=t.shape, dtype=t.dtype) for t in given]
        here = dict(zip(map(id, given), inputs, strict=True))
        for call in self.calls[first:last]:
            args, kwargs = call.given(here)
            outputs = keras.tree.flatten(call.operation(*args, **kwargs))
            here |= dict(zip(map(id, call.output_tensors), outputs, strict=True))
        return keras.Model(inputs, [here[id(t)] for t in self.crossing(last)])

    def seconds(self, x: Any) -> list[float]:
        """Seconds of the forward pass of each call, in inference, the best of three."""
        arrays = x if isinstance(x, tuple) else (x,)
        values = {
            id(t): tf.constant(np.asarray(a), t.dtype)
            for t, a in zip(self.inputs, arrays, strict=True)
        }
        found = []
        for call in self.calls:
            args, kwargs = call.given(values)
            if "training" in inspect.signature(call.operation.call).parameters:
                kwargs["training"] = False  # also where the model has it otherwise
            best = np.inf
            for _ in range(3):
                began = time.perf_counter()
                outputs = keras.tree.flatten(call.operation(*args, **kwargs))
                best = min(best, time.perf_counter() - began)
            values |= dict(zip(map(id, call.output_tensors), outputs, strict=True))
            found.append(best)
        return found
