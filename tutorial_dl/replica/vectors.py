"""`Vectors`: base class of the numpy replicas, two flat vectors in memory that can be moved."""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_kernels.shared.window import aligned
from tutorial_dl.replica.base import Segment, check_place, length

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Vectors:
    """The parts of a Replica besides gradients: vectors, `segments`, empty `state`, `place`."""

    def __init__(self, segments: tuple[Segment, ...], dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in FLOATS:
            raise ValueError(f"dtype {self.dtype}: expected float32 or float64")
        self.segments = segments
        self.state = np.empty(0, self.dtype)
        self._hold(*(aligned(length(segments), self.dtype) for _ in range(2)))

    def place(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """Move both vectors, values included, into the given memory (see `Replica.place`)."""
        check_place(self, parameters, gradient)
        parameters[:], gradient[:] = self.parameters, self.gradient
        self._hold(parameters, gradient)

    def swap(self) -> None:
        """Exchange the memory of parameters and gradient."""
        if type(self)._hold is not Vectors._hold:  # a subclass that makes views of its own
            self._hold(self.gradient, self.parameters)
            return
        self.parameters, self.gradient = self.gradient, self.parameters
        self.weights, self.weights_gradient = self.weights_gradient, self.weights

    def _hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        self.parameters, self.gradient = parameters, gradient
        # Each layer's arrays are views, so writing to them writes to the vector.
        self.weights = [s.of(parameters) for s in self.segments]
        self.weights_gradient = [s.of(gradient) for s in self.segments]
