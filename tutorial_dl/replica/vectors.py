"""`Vectors`: base class of the numpy replicas, two flat vectors in memory that can be moved."""

from dataclasses import replace
from typing import Any

import numpy as np

from numba_kernels.shared.window import aligned
from tutorial_dl.replica.base import Replica, Segment, Traits, length

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
        if type(self)._hold is not Vectors._hold:  # a subclass that makes views of its own
            self._hold(self.gradient, self.parameters)
            return
        self.parameters, self.gradient = self.gradient, self.parameters
        self.weights, self.weights_gradient = self.weights_gradient, self.weights

    def _hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        super()._hold(parameters, gradient)
        # Each layer's arrays are views, so writing to them writes to the vector.
        self.weights = [s.of(parameters) for s in self.segments]
        self.weights_gradient = [s.of(gradient) for s in self.segments]
