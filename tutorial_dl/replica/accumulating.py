"""Gradient accumulation: a batch in several micro-batches, one after the other, for one update.

A replica's memory grows with the samples per call, so a batch that is too large is cut. The
gradient of the whole batch is the mean of the micro-batches' gradients, weighted by their samples
s_j:

    g = sum_j s_j g_j / sum_j s_j

The update equals that of the whole batch, at the cost of one more vector. (Only layers that use the
whole batch, such as batch normalisation, compute something different.)
"""

from dataclasses import replace

import numpy as np

from ..data.dataset import Data, share
from .base import Batch, Replica, gradient_is_finite
from .proxy import ReplicaProxy


class Accumulating(ReplicaProxy):
    """A Replica around another one, which gets each batch in `times` micro-batches."""

    gradient_is_finite = True

    def __init__(self, replica: Replica, times: int):
        check_times(times)
        super().__init__(replica)
        # The pieces' gradients are added up in one vector.
        self.traits = replace(self.traits, checks_gradient=True, keeps_apart=False)
        self.times, self._sum = times, np.zeros_like(replica.gradient)

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """As for the whole batch; every piece is computed, even one without samples."""
        seeds = None if self.inner.random is None else np.array(self.inner.random)
        try:
            return self._pieces(Data(*batch))
        except BaseException:
            if seeds is not None and seeds.size:
                self.inner.random = seeds  # a step that failed is made again alike
            raise

    def _pieces(self, data: Data) -> tuple[float, int]:
        total, loss = len(data), 0.0
        self._sum[:] = 0
        self.gradient_is_finite = True
        for piece in range(self.times):
            part = data.take(share(total, piece, self.times))
            of_piece, samples = self.inner.compute_gradient(part)
            if samples:
                self.gradient_is_finite &= gradient_is_finite(self.inner)
                gradient = self.inner.gradient
                gradient *= gradient.dtype.type(samples / total)
                self._sum += gradient
                loss += of_piece * samples / total
        self.inner.gradient[:] = self._sum
        return loss, total


def check_times(times: int) -> None:
    """Raise ValueError unless a batch can be computed in so many micro-batches."""
    if times < 2:
        raise ValueError(f"pieces per batch must be at least 2 to accumulate, got {times}")
