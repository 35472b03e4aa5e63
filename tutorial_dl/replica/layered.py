"""`LayeredReplica`: the Replica of a chain of numpy layers (layers.py) and a loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch, lay_out, plain
from tutorial_dl.replica.layers import Activation, At, Chain, Conv2D, Dense, Dropout, Flatten, Layer
from tutorial_dl.replica.vectors import Network


def loss_of(kind: str, z: np.ndarray, y: np.ndarray) -> tuple[float, int, np.ndarray]:
    """(Sum of the samples' losses, correct predictions, gradient of that sum by z).

    Args:
        kind: "cross_entropy" of the softmax of logits z (s, ..., k) and labels y (s, ...), a mean
            over a sample's positions; or "mse" of z and y (s, ...), a mean over its numbers.
    """
    samples = len(z)
    y = np.asarray(y)
    if kind == "mse":
        if y.size != z.size or len(y) != samples:
            raise ValueError(f"targets of shape {y.shape}: expected {z.shape}")
        away = z - y.reshape(z.shape).astype(z.dtype)
        each = max(z[0].size, 1) if samples else 1
        return float(np.vdot(away, away)) / each, 0, away * z.dtype.type(2 / each)
    if y.size != z.size // z.shape[-1] or y.dtype.kind not in "iub":
        raise ValueError(
            f"targets of shape {y.shape} and dtype {y.dtype}: cross_entropy takes integer labels "
            f"of shape {z.shape[:-1]}"
        )
    labels, classes = y.reshape(-1).astype(np.int64), z.shape[-1]
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(
            f"labels {labels.min()} to {labels.max()}: the model has classes 0 to {classes - 1}"
        )
    flat = z.reshape(-1, classes)
    largest = flat.max(axis=1, keepdims=True)
    g = np.exp(flat - largest)
    total = g.sum(axis=1, keepdims=True)
    place = np.arange(len(flat))
    # In float64 also for float32: the loss is a sum of many terms, and this costs nothing.
    losses = np.log(total[:, 0].astype(np.float64)) + largest[:, 0] - flat[place, labels]
    right = int((flat.argmax(axis=1) == labels).sum())
    g /= total
    g[place, labels] -= 1
    each = max(len(flat) // max(samples, 1), 1)  # positions per sample
    g *= z.dtype.type(1 / each)
    return float(losses.sum()) / each, right, g.reshape(z.shape)


class LayeredReplica(Network):
    """A chain of layers, with its loss, as two flat vectors.

    Args:
        layers: In order; their arrays lie in the vectors in the same order.
        loss: "cross_entropy" (the last layer gives logits) or "mse".
        seed: Seed of the initial weights and of dropout's masks.
        dtype: float32 or float64.
    """

    def __init__(
        self, layers: Sequence[Layer], loss: str = "cross_entropy", seed: int = 0,
        dtype: Any = np.float32,
    ) -> None:  # fmt: skip
        self.chain = Chain("model", layers)
        super().__init__(lay_out(self.chain.arrays()), dtype, loss)
        self.chain.start(self.weights, np.random.default_rng(seed))
        if any(isinstance(layer, Dropout) for layer in flat_layers(layers)):
            self.random = np.array([seed, 0], np.int64)  # seed, steps so far

    @property
    def layers(self) -> list[Layer]:
        return self.chain.layers

    def at(self, training: bool) -> At:
        """What the masks of the next pass depend on; a pass that trains counts as a step."""
        if self.random is None:
            return At(training=training)
        at = At(int(self.random[0]), int(self.random[1]), 0, training)
        if training:
            self.random = self.random + np.array([0, 1])
        return at

    def outputs(self, x: np.ndarray) -> np.ndarray:
        return self.chain.forward(self.inputs(x), self.weights, At())[0]

    def loss_of(self, z: np.ndarray, y: np.ndarray) -> tuple[float, int]:
        return loss_of(self.loss, z, y)[:2]

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Floats in this model's dtype; integers, such as tokens, as they are."""
        x = np.asarray(x)
        return x.astype(self.dtype, copy=False) if x.dtype.kind == "f" else x

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        x, y = plain(batch)
        self.gradient[:] = 0
        if len(x) == 0:
            return 0.0, 0
        z, saved = self.chain.forward(self.inputs(x), self.weights, self.at(training=True))
        loss, _, g = loss_of(self.loss, z, y)
        g *= self.dtype.type(1 / len(x))
        _, kept = self.chain.backward_inputs(self.weights, saved, g)
        self.chain.backward_weights(saved, kept, self.weights_gradient)
        return loss / len(x), len(x)


def flat_layers(layers: Iterable[Layer]) -> list[Layer]:
    """All layers, with those inside chains in their place."""
    found: list[Layer] = []
    for layer in layers:
        found += flat_layers(layer.layers) if isinstance(layer, Chain) else [layer]
    return found


def mlp_layers(sizes: Sequence[int], activation: str = "relu") -> list[Layer]:
    """A dense network of these sizes, its inputs flattened; the last layer has no activation."""
    layers: list[Layer] = [Flatten("flatten")]
    for n, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        layers.append(Dense(f"layer_{n}", inputs, outputs))
        if n < len(sizes) - 1:
            layers.append(Activation(f"activation_{n}", activation))
    return layers


def cnn_layers(shape: tuple[int, int, int], filters: Sequence[int], outputs: int) -> list[Layer]:
    """Convolutions of 3 x 3 with relu on images (height, width, channels), then a dense layer."""
    height, width, channels = shape
    layers: list[Layer] = []
    for n, (before, here) in enumerate(zip((channels, *filters), filters, strict=False), start=1):
        layers += [Conv2D(f"conv_{n}", before, here), Activation(f"activation_{n}", "relu")]
    last = (filters or (channels,))[-1]
    return [*layers, Flatten("flatten"), Dense("output", height * width * last, outputs)]
