"""Gradient accumulation: a batch in several pieces, one after the other, for one update.

A replica's memory grows with the samples of a call, so a batch that is too large for it is cut. The
gradient of the whole is the mean of the pieces' gradients, weighted by their samples s_j:

    g = sum_j s_j g_j / sum_j s_j

The update is that of the whole batch, at the cost of one more vector. (Only what looks at a batch
as a whole, as batch normalisation does, sees the pieces.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..data.dataset import Data, share
from .base import Batch, Replica, gradient_is_finite

OWN = ("inner", "pieces", "_sum", "gradient_is_finite")  # all else is the other replica's


class Accumulating:
    """A Replica around another one, which gets each batch in `pieces`."""

    keeps_apart = False  # gradients of pieces are added up in one place

    def __init__(self, replica: Replica, pieces: int):
        if pieces < 2:
            raise ValueError(f"{pieces} pieces a batch; 2 or more is accumulation")
        self.inner, self.pieces = replica, pieces
        self._sum = np.zeros_like(replica.gradient)

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """As of the whole batch; every piece is computed, also one of no samples."""
        data = Data(*batch)
        total, loss = len(data), 0.0
        self._sum[:] = 0
        self.gradient_is_finite = True
        for piece in range(self.pieces):
            part = data.take(share(total, piece, self.pieces))
            of_piece, samples = self.inner.compute_gradient(part)
            if samples:
                self.gradient_is_finite &= gradient_is_finite(self.inner)
                gradient = self.inner.gradient
                gradient *= gradient.dtype.type(samples / total)
                self._sum += gradient
                loss += of_piece * samples / total
        self.inner.gradient[:] = self._sum
        return loss, total

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        return self.inner.evaluate(batches)

    def place(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        self.inner.place(parameters, gradient)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # parameters, gradient, segments, model, predict ...

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OWN:
            super().__setattr__(name, value)
        else:  # or it would hide the other replica's
            setattr(self.inner, name, value)
