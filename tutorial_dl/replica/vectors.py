"""`Vectors` and `Network`: base classes of the numpy replicas."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from numba_kernels.shared.window import aligned
from tutorial_dl.replica.base import Batch, Replica, Segment, Traits, length, plain

LOSSES = ("cross_entropy", "mse")
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Vectors(Replica):
    """A Replica that makes its own vectors, with views of each layer's part of them."""

    traits = Traits(swaps=True)

    def __init_subclass__(cls, **options: Any) -> None:
        """A class that overrides `place` alone has inherited a `swap` that does not fit it."""
        super().__init_subclass__(**options)
        if "place" in vars(cls) and "swap" not in vars(cls):
            cls.traits = replace(cls.traits, swaps=False)

    def __init__(self, segments: tuple[Segment, ...], dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in FLOATS:
            raise ValueError(f"dtype {self.dtype}: expected float32 or float64")
        self.segments = segments
        self.state = np.empty(0, self.dtype)
        self._hold(*(aligned(length(segments), self.dtype) for _ in range(2)))

    def swap(self) -> None:
        self._hold(self.gradient, self.parameters)

    def _hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        super()._hold(parameters, gradient)
        # Each layer's arrays are views, so writing to them writes to the vector.
        self.weights = [s.view(parameters) for s in self.segments]
        self.weights_gradient = [s.view(gradient) for s in self.segments]


class Network(Vectors):
    """A Vectors with outputs z (s, ..., k) and a loss.

    Args:
        loss: "cross_entropy" of the softmax of z and labels y (s, ...), a mean over a sample's
            positions; or "mse" of z and y, a mean over its numbers.
    """

    def __init__(self, segments: tuple[Segment, ...], dtype: Any, loss: str) -> None:
        if loss not in LOSSES:
            raise ValueError(f"loss '{loss}': expected {' or '.join(LOSSES)}")
        self.loss = loss
        super().__init__(segments, dtype)

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """z, in inference mode."""
        raise NotImplementedError

    def loss_of(self, z: np.ndarray, y: np.ndarray) -> tuple[float, int]:
        """(Sum of the samples' losses, correct predictions); z may change."""
        raise NotImplementedError

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Probabilities (s, ..., k) for "cross_entropy", plain outputs for "mse"."""
        return self.predicted(self.outputs(x).copy())

    def predicted(self, z: np.ndarray) -> np.ndarray:
        if self.loss == "cross_entropy":
            np.exp(z - z.max(axis=-1, keepdims=True), out=z)
            z /= z.sum(axis=-1, keepdims=True)
        return z

    def measure(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Sums {"loss", "accuracy" (for "cross_entropy"), "samples"}.

        With several positions per sample, the accuracy is the share of positions.
        """
        loss, right, samples = 0.0, 0.0, 0
        for x, y in map(plain, batches):
            if len(x):
                more, hits = self.loss_of(self.outputs(x), y)
                loss, samples = loss + more, samples + len(x)
                right += hits * len(x) / max(np.size(y), 1)
        sums = {"loss": loss, "samples": samples}
        return sums | ({"accuracy": right} if self.loss == "cross_entropy" else {})
