"""Stages: the parts of a model that ranks of a pipeline hold, and where a model is cut.

A stage is a run of layers. What goes from one stage to the next is a list of arrays, samples first;
`Boundary` says of which shapes. A `Parts` offers a model's layers to be cut; `LayeredParts` those
of a numpy replica, keras_stages.py those of a Keras model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tutorial_dl.replica.base import Segment, save_arrays
from tutorial_dl.replica.layered import LayeredReplica, loss_of
from tutorial_dl.replica.layers import At, Chain, Layer

Values = list[np.ndarray]


class Boundary(NamedTuple):
    """One of the arrays that go from a stage to the next: per sample."""

    shape: tuple[int, ...]
    dtype: str


class Stage:
    """Base class of stages: a part of a model on one rank. A subclass has

        hold(parameters, gradient)           take this memory; W adds to the gradient there
        forward(x, at)                       F: (outputs, what B needs), from Values
        backward_inputs(saved, gy)           B: (gradients of inputs, what W needs)
        backward_weights(saved, kept)        W

    and, for the last stage of a model,

        loss(y, targets)                     (sums over the samples, with at least "loss", gradient
                                             of that sum by y)
        result(y)                            the model's outputs, an array

    Attributes:
        segments: Within this stage's vectors, which have `size` elements.
        apart: Whether W may come later than B; else B may compute both.
    """

    segments: tuple[Segment, ...]
    size: int
    apart = True


class Parts:
    """Base class: a model as layers in order, which can be cut anywhere between two of them.

    A subclass has

        weights_before(layer)    where the weights of layer number `layer` begin in the vectors
        stage(first, last)       the Stage of layers [first, last)
        outputs(x, places)       the Boundaries of a cut before layers `places`; x: some samples
        costs(x)                 seconds that each layer takes, measured on the inputs x
        forget(stages)           free the weights of the whole model; this rank has those of
                                 `stages`
        save(path, parameters, *trained)    write the whole model with these weights

    Attributes:
        names: Of the layers.
        segments, dtype, random: Of the whole model, as in Replica.
        metrics: The sums that the last stage's `loss` returns.
    """

    names: list[str]
    segments: tuple[Segment, ...]
    dtype: np.dtype
    random: np.ndarray | None = None
    metrics: tuple[str, ...] = ("loss",)


def cut_at(parts: Parts, stages: int, names: Sequence[str]) -> list[int]:
    """The cut by hand: each name is the first layer of a stage, but for the first stage."""
    if len(names) != stages - 1:
        raise ValueError(
            f"{stages} stages need {stages - 1} layers at which to cut, got {len(names)}"
        )
    for name in names:
        if name not in parts.names:
            raise ValueError(f"the model has no layer '{name}': {', '.join(parts.names)}")
    places = [0, *(parts.names.index(name) for name in names), len(parts.names)]
    for stage, (first, last) in enumerate(pairwise(places)):
        if last <= first:
            raise ValueError(
                f"layer '{parts.names[last]}' must come after layer '{parts.names[first]}', at "
                f"which stage {stage} begins"
            )
        if parts.weights_before(first) == parts.weights_before(last):
            held = ", ".join(parts.names[first:last])
            raise ValueError(f"stage {stage} ({held}) has no weights: cut elsewhere")
    return places


class LayeredStage(Stage):
    """A stage of a LayeredReplica's layers."""

    def __init__(
        self, of: LayeredReplica, layers: Sequence[Layer], segments: tuple[Segment, ...], size: int
    ) -> None:
        self.of, self.chain, self.segments, self.size = of, Chain("stage", layers), segments, size

    def hold(self, parameters, gradient):
        self.w = [s.view(parameters) for s in self.segments]
        self.gw = [s.view(gradient) for s in self.segments]

    def forward(self, x, at):
        y, saved = self.chain.forward(self.of.inputs(x[0]), self.w, at)
        return [y], saved

    def backward_inputs(self, saved, gy):
        gx, kept = self.chain.backward_inputs(self.w, saved, gy[0])
        return ([] if gx is None else [gx]), kept

    def backward_weights(self, saved, kept):
        self.chain.backward_weights(saved, kept, self.gw)

    def loss(self, y, targets):
        loss, right, g = loss_of(self.of.loss, y[0], targets)
        sums = {"loss": loss}
        if self.of.loss == "cross_entropy":
            sums["accuracy"] = right * len(y[0]) / max(np.size(targets), 1)
        return sums, [g]

    def result(self, y):
        return self.of.predicted(y[0].copy())


class LayeredParts(Parts):
    """The layers of a LayeredReplica."""

    def __init__(self, replica: LayeredReplica) -> None:
        self.replica, self.segments, self.dtype = replica, replica.segments, replica.dtype
        self.names = [layer.name for layer in replica.layers]
        self.random = replica.random
        self.metrics = ("loss", "accuracy") if replica.loss == "cross_entropy" else ("loss",)

    def weights_before(self, layer):
        before = sum(len(one.arrays()) for one in self.replica.layers[:layer])
        if before == len(self.segments):
            return self.replica.parameters.size
        return self.segments[before].offset

    def stage(self, first, last):
        begin, end = self.weights_before(first), self.weights_before(last)
        own = [s for s in self.segments if begin <= s.offset < end and s.size]
        own = tuple(Segment(s.name, s.offset - begin, s.shape) for s in own)
        return LayeredStage(self.replica, self.replica.layers[first:last], own, end - begin)

    def _layer_by_layer(self, x: Any) -> Iterator[tuple[Layer, list, np.ndarray, np.ndarray]]:
        """Yield (layer, its weights, inputs, outputs)."""
        y = self.replica.inputs(x)
        for layer, w in self.replica.chain.with_arrays(self.replica.weights):
            x, (y, _) = y, layer.forward(y, w, At())
            yield layer, w, x, y

    def outputs(self, x, places):
        every = [y for *_, y in self._layer_by_layer(x)]
        ends = [every[place - 1] for place in places]
        return [[Boundary(tuple(y.shape[1:]), str(y.dtype))] for y in ends]

    def forget(self, stages):
        nothing = np.zeros(0, self.dtype)
        self.replica.parameters = self.replica.gradient = nothing
        self.replica.weights = self.replica.weights_gradient = []

    def save(self, path, parameters, *trained):
        save_arrays(self.replica, path, self.segments, parameters)

    def costs(self, x):
        found = []
        for layer, w, inputs, _ in self._layer_by_layer(x):
            best = np.inf
            for _ in range(3):
                began = time.perf_counter()
                y, saved = layer.forward(inputs, w, At())
                _, kept = layer.backward_inputs(w, saved, y)
                layer.backward_weights(saved, kept, [np.zeros_like(a) for a in w])
                best = min(best, time.perf_counter() - began)
            found.append(best)
        return found
