"""Layers in numpy whose backward pass has two halves, so that a pipeline can run them apart.

A layer turns x into y = f(x, w). For the loss L, and gy = dL/dy,

    forward(x, w, at)              F: y, and `saved`, what the other two need of it
    backward_inputs(w, saved, gy)  B: gx = dL/dx, and `kept`, what W needs of it
    backward_weights(saved, kept, gw)  W: gw += dL/dw

Only B has to wait for the next layer, and only the layer before waits for it; W may come at any
time later (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241). Arrays have samples
first. `w` and `gw` are lists of arrays, shaped as `arrays` says; a layer keeps no arrays itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Arrays = list[np.ndarray]


class At(NamedTuple):
    """Which samples a forward pass computes: what random masks depend on, besides the layer.

    One sample's mask does not depend on the others, so any micro-batch draws the serial model's.
    """

    seed: int = 0
    step: int = 0  # of training
    first: int = 0  # number of the first sample within the step's batch
    training: bool = False


class Layer:
    """Base class, and a layer without weights. Names are unique within a model."""

    def __init__(self, name: str) -> None:
        self.name = name

    def arrays(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each array of weights, in the order of `w`."""
        return []

    def start(self, w: Arrays, random: np.random.Generator) -> None:
        """Set the initial weights."""

    def forward(self, x: np.ndarray, w: Arrays, at: At) -> tuple[np.ndarray, Any]:
        raise NotImplementedError

    def backward_inputs(self, w: Arrays, saved: Any, gy: np.ndarray) -> tuple[np.ndarray, Any]:
        raise NotImplementedError

    def backward_weights(self, saved: Any, kept: Any, gw: Arrays) -> None:
        pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def glorot(kernel: np.ndarray, random: np.random.Generator, inputs: int, outputs: int) -> None:
    """Uniform in +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio, 2010)."""
    limit = np.sqrt(6 / (inputs + outputs))
    kernel[...] = random.uniform(-limit, limit, kernel.shape)


def rows(x: np.ndarray) -> np.ndarray:
    """x (..., n) as a matrix (rows, n)."""
    return x.reshape(-1, x.shape[-1])


class Dense(Layer):
    """y = x W + b along the last axis: x (s, ..., inputs), y (s, ..., outputs)."""

    def __init__(self, name: str, inputs: int, outputs: int) -> None:
        super().__init__(name)
        self.inputs, self.outputs = inputs, outputs

    def arrays(self):
        return [
            (f"{self.name}/kernel", (self.inputs, self.outputs)),
            (f"{self.name}/bias", (self.outputs,)),
        ]

    def start(self, w, random):
        glorot(w[0], random, self.inputs, self.outputs)

    def forward(self, x, w, at):
        y = x @ w[0]
        y += w[1]
        return y, x

    def backward_inputs(self, w, saved, gy):
        return gy @ w[0].T, gy

    def backward_weights(self, saved, kept, gw):
        gw[0] += rows(saved).T @ rows(kept)
        gw[1] += rows(kept).sum(axis=0)


ROOT = np.sqrt(2 / np.pi)
CUBIC = 0.044715


class Activation(Layer):
    """relu, tanh, or gelu in its approximation by tanh (Hendrycks and Gimpel, arXiv 1606.08415):

    gelu(x) = x (1 + t) / 2,  t = tanh(sqrt(2 / pi) (x + 0.044715 x^3)).
    """

    def __init__(self, name: str, kind: str) -> None:
        super().__init__(name)
        if kind not in ("relu", "tanh", "gelu"):
            raise ValueError(f"activation {kind!r}: expected relu, tanh or gelu")
        self.kind = kind

    def forward(self, x, w, at):
        if self.kind == "relu":
            y = np.maximum(x, 0)
            return y, y
        if self.kind == "tanh":
            y = np.tanh(x)
            return y, y
        one = x.dtype.type
        t = np.tanh(one(ROOT) * (x + one(CUBIC) * x * x * x))
        return one(0.5) * x * (1 + t), (x, t)

    def backward_inputs(self, w, saved, gy):
        if self.kind == "relu":
            return gy * (saved > 0), None
        if self.kind == "tanh":
            return gy * (1 - saved * saved), None
        x, t = saved
        one = x.dtype.type
        inner = one(ROOT) * (1 + one(3 * CUBIC) * x * x)
        return gy * (one(0.5) * (1 + t) + one(0.5) * x * (1 - t * t) * inner), None


class Flatten(Layer):
    """x (s, ...) as y (s, n)."""

    def forward(self, x, w, at):
        return x.reshape(len(x), -1), x.shape

    def backward_inputs(self, w, saved, gy):
        return gy.reshape(saved), None


class Conv2D(Layer):
    """Convolution of 3 x 3, padded with zeros so that the image keeps its size.

    x (s, h, w, channels), y (s, h, w, filters): nine shifted images, each times a matrix.
    """

    def __init__(self, name: str, channels: int, filters: int) -> None:
        super().__init__(name)
        self.channels, self.filters = channels, filters

    def arrays(self):
        return [
            (f"{self.name}/kernel", (3, 3, self.channels, self.filters)),
            (f"{self.name}/bias", (self.filters,)),
        ]

    def start(self, w, random):
        glorot(w[0], random, 9 * self.channels, 9 * self.filters)

    @staticmethod
    def _windows(x):
        s, h, w, c = x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        shifted = [padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)]
        return np.stack(shifted, axis=3).reshape(s, h, w, 9 * c)

    def forward(self, x, w, at):
        windows = self._windows(x)  # (s, h, w, 9 channels)
        y = windows @ w[0].reshape(-1, self.filters)
        y += w[1]
        return y, windows

    def backward_inputs(self, w, saved, gy):
        s, h, wide, _ = gy.shape
        parts = (gy @ w[0].reshape(-1, self.filters).T).reshape(s, h, wide, 9, self.channels)
        padded = np.zeros((s, h + 2, wide + 2, self.channels), gy.dtype)
        for n in range(9):
            i, j = divmod(n, 3)
            padded[:, i : i + h, j : j + wide] += parts[:, :, :, n]
        return padded[:, 1:-1, 1:-1], gy

    def backward_weights(self, saved, kept, gw):
        gw[0] += (rows(saved).T @ rows(kept)).reshape(gw[0].shape)
        gw[1] += rows(kept).sum(axis=0)


class LayerNorm(Layer):
    """y = gamma (x - mean) / sqrt(variance + epsilon) + beta along the last axis, of `size`.

    Ba, Kiros, Hinton, arXiv 1607.06450.
    """

    def __init__(self, name: str, size: int, epsilon: float = 1e-5) -> None:
        super().__init__(name)
        self.size, self.epsilon = size, epsilon

    def arrays(self):
        return [(f"{self.name}/gamma", (self.size,)), (f"{self.name}/beta", (self.size,))]

    def start(self, w, random):
        w[0][:] = 1

    def forward(self, x, w, at):
        away = x - x.mean(axis=-1, keepdims=True)
        variance = (away * away).mean(axis=-1, keepdims=True)
        scale = 1 / np.sqrt(variance + x.dtype.type(self.epsilon))
        away *= scale
        return away * w[0] + w[1], (away, scale)

    def backward_inputs(self, w, saved, gy):
        unit, scale = saved
        g = gy * w[0]
        along = (g * unit).mean(axis=-1, keepdims=True)
        return scale * (g - g.mean(axis=-1, keepdims=True) - unit * along), gy

    def backward_weights(self, saved, kept, gw):
        gw[0] += (rows(kept) * rows(saved[0])).sum(axis=0)
        gw[1] += rows(kept).sum(axis=0)


class Dropout(Layer):
    """While training, sets a share `rate` of the numbers to 0, and divides the others by 1 - rate.

    The mask of a sample depends on the layer's number, the seed, the step and the sample's place in
    the step's batch (`At`), so that a pipeline's micro-batches draw those of the whole batch.
    """

    def __init__(self, name: str, rate: float, number: int) -> None:
        super().__init__(name)
        if not 0 <= rate < 1:
            raise ValueError(f"dropout rate must be at least 0 and below 1, got {rate}")
        self.rate, self.number = rate, number

    def forward(self, x, w, at):
        if not at.training or not self.rate:
            return x, None
        mask = np.empty(x.shape, x.dtype)
        for i in range(len(x)):
            counter = [0, at.first + i, at.step, self.number]
            random = np.random.Generator(np.random.Philox(key=at.seed, counter=counter))
            mask[i] = random.random(x.shape[1:], np.float32) >= self.rate
        mask *= x.dtype.type(1 / (1 - self.rate))
        return x * mask, mask

    def backward_inputs(self, w, saved, gy):
        return (gy if saved is None else gy * saved), None


class Chain(Layer):
    """Layers one after the other, as one layer; with `residual`, y = x + what they compute."""

    def __init__(self, name: str, layers: Sequence[Layer], residual: bool = False) -> None:
        super().__init__(name)
        self.layers, self.residual = list(layers), residual

    def arrays(self):
        return [array for layer in self.layers for array in layer.arrays()]

    def start(self, w, random):
        for layer, own in self.with_arrays(w):
            layer.start(own, random)

    def with_arrays(self, w: Arrays) -> list[tuple[Layer, Arrays]]:
        """Each layer with its part of a list of arrays."""
        pairs, first = [], 0
        for layer in self.layers:
            last = first + len(layer.arrays())
            pairs.append((layer, w[first:last]))
            first = last
        return pairs

    def forward(self, x, w, at):
        y, saved = x, []
        for layer, own in self.with_arrays(w):
            y, one = layer.forward(y, own, at)
            saved.append(one)
        return (x + y if self.residual else y), saved

    def backward_inputs(self, w, saved, gy):
        g, kept = gy, []
        for (layer, own), one in zip(reversed(self.with_arrays(w)), reversed(saved), strict=True):
            g, its = layer.backward_inputs(own, one, g)
            kept.append(its)
        return (gy + g if self.residual else g), kept[::-1]

    def backward_weights(self, saved, kept, gw):
        for (layer, own), one, its in zip(self.with_arrays(gw), saved, kept, strict=True):
            layer.backward_weights(one, its, own)
