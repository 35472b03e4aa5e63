"""Stages: the parts of a model that ranks of a pipeline hold, and where a model is cut.

A stage is a run of layers. What goes from one stage to the next is a list of arrays, samples first;
`Boundary` says of which shapes. A `Parts` offers a model's layers to be cut; `LayeredParts` those
of a numpy replica.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tutorial_dl.replica.base import Batch, CompiledOptimizer, Segment, save_arrays
from tutorial_dl.replica.layered import LayeredReplica, loss_of
from tutorial_dl.replica.layers import At, Chain, Layer

Values = list[np.ndarray]


class Boundary(NamedTuple):
    """One of the arrays that go from a stage to the next: per sample."""

    shape: tuple[int, ...]
    dtype: str


class Stage:
    """Base class of stages: a part of a model on one rank.

    `hold` gives it its memory; W adds to the gradient there. `loss` is asked of the last stage.
    """

    segments: tuple[Segment, ...]  # within this stage's vectors
    size: int  # of these vectors
    apart = True  # whether W may come later than B; else B may compute both

    def hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        raise NotImplementedError

    def forward(self, x: Values, at: At) -> tuple[Values, Any]:
        raise NotImplementedError

    def backward_inputs(self, saved: Any, gy: Values) -> tuple[Values, Any]:
        raise NotImplementedError

    def backward_weights(self, saved: Any, kept: Any) -> None:
        raise NotImplementedError

    def loss(self, y: Values, targets: Any) -> tuple[dict[str, float], Values]:
        """Sums over the samples, with at least "loss", and the gradient of that sum by `y`."""
        raise NotImplementedError

    def result(self, y: Values) -> np.ndarray:
        """The model's outputs, of what the last stage computed."""
        raise NotImplementedError


class Parts:
    """A model as layers in order, which can be cut anywhere between two of them."""

    names: list[str]
    segments: tuple[Segment, ...]  # of the whole model
    dtype: np.dtype
    random: np.ndarray | None = None  # as in Replica
    metrics: tuple[str, ...] = ("loss",)  # the sums that the last stage's `loss` returns

    def weights_before(self, layer: int) -> int:
        """Where the weights of layer number `layer` begin in the model's vectors."""
        raise NotImplementedError

    def stage(self, first: int, last: int) -> Stage:
        """The stage of layers [first, last)."""
        raise NotImplementedError

    def outputs(self, x: Any, places: Sequence[int]) -> list[list[Boundary]]:
        """What goes over each boundary of a cut before layers `places`; `x` are some samples."""
        raise NotImplementedError

    def own_optimizer(self, given: Any = None) -> CompiledOptimizer | None:
        """As `Replica.own_optimizer`."""
        return None

    def try_out(self, batch: Batch) -> None:
        """Before training, with a few samples: raise ValueError for what does not fit parts."""

    def forget(self, stages: Sequence[int]) -> None:
        """Free the weights of the whole model; this rank has those of `stages`."""

    def save(self, path: Path | str, parameters: np.ndarray, *trained: Any) -> None:
        """Write the whole model with these weights, as its replica does."""
        raise NotImplementedError

    def costs(self, x: Any) -> list[float]:
        """Seconds that each layer takes, measured on the inputs `x`."""
        raise NotImplementedError


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
    """A stage of numpy layers."""

    def __init__(
        self, layers: Sequence[Layer], segments: tuple[Segment, ...], size: int,
        dtype: np.dtype, loss: str,
    ) -> None:  # fmt: skip
        self.chain, self.segments, self.size = Chain("stage", layers), segments, size
        self.dtype, self.kind = dtype, loss

    def hold(self, parameters, gradient):
        self.w = [s.of(parameters) for s in self.segments]
        self.gw = [s.of(gradient) for s in self.segments]

    def forward(self, x, at):
        y, saved = self.chain.forward(_floats(x[0], self.dtype), self.w, at)
        return [y], saved

    def backward_inputs(self, saved, gy):
        gx, kept = self.chain.backward_inputs(self.w, saved, gy[0])
        return ([] if gx is None else [gx]), kept

    def backward_weights(self, saved, kept):
        self.chain.backward_weights(saved, kept, self.gw)

    def loss(self, y, targets):
        loss, right, g = loss_of(self.kind, y[0], targets)
        sums = {"loss": loss}
        if self.kind == "cross_entropy":
            sums["accuracy"] = right * len(y[0]) / max(np.size(targets), 1)
        return sums, [g]

    def result(self, y):
        if self.kind != "cross_entropy":
            return y[0]
        z = np.exp(y[0] - y[0].max(axis=-1, keepdims=True))
        return z / z.sum(axis=-1, keepdims=True)


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
        layers = self.replica.layers[first:last]
        return LayeredStage(layers, own, end - begin, self.dtype, self.replica.loss)

    def outputs(self, x: np.ndarray, places: Sequence[int]) -> list[list[Boundary]]:
        y, found, at = _floats(np.asarray(x), self.dtype), [], 0
        for number, layer in enumerate(self.replica.layers):
            here = len(layer.arrays())
            y, _ = layer.forward(y, self.replica.weights[at : at + here], At())
            at += here
            if number + 1 in places:
                found.append([Boundary(tuple(y.shape[1:]), str(y.dtype))])
        return found

    def forget(self, stages):
        nothing = np.zeros(0, self.dtype)
        self.replica.parameters = self.replica.gradient = nothing
        self.replica.weights = self.replica.weights_gradient = []

    def save(self, path, parameters, *trained):
        save_arrays(self.replica, path, self.segments, parameters)

    def costs(self, x):
        y, found, at = _floats(np.asarray(x), self.dtype), [], 0
        for layer in self.replica.layers:
            w = self.replica.weights[at : at + len(layer.arrays())]
            at += len(w)
            best, inputs = np.inf, y
            for _ in range(3):
                began = time.perf_counter()
                y, saved = layer.forward(inputs, w, At())
                _, kept = layer.backward_inputs(w, saved, y)
                layer.backward_weights(saved, kept, [np.zeros_like(a) for a in w])
                best = min(best, time.perf_counter() - began)
            found.append(best)
        return found


def _floats(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats in the model's dtype; integers, such as tokens, as they are."""
    return x.astype(dtype, copy=False) if x.dtype.kind == "f" else x
