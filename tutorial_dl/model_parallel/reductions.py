"""`Reductions`: a Team's reductions, and the bytes that this rank sends in them.

In a ring of T ranks, each rank sends, for a vector of n bytes that all have at the end,

    allgather         (T - 1) / T n        every part but the own one passes through it
    reduce-scatter    (T - 1) / T n        so do the sums of every part
    allreduce         2 (T - 1) / T n      a reduce-scatter and an allgather

Ranks that share memory copy these bytes in place of sending them. Parts are those of `Positions`,
in order: if T does not divide the positions, their lengths differ by one, and so do the bytes of
ranks, which the formulas give on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from numba_kernels.shared.node_array import LINE
from numba_kernels.team.collectives import Collectives
from tutorial_dl.model_parallel.positions import Positions
from tutorial_dl.replica.base import Segment


class Reductions:
    """The ranks of `team`, with a count.

    Attributes:
        sent: Bytes so far.
        length: Positions of the sequences at hand, as `part` has seen them.
    """

    def __init__(self, team: Collectives) -> None:
        self.team, self.size, self.rank, self.sent = team, team.size, team.rank, 0.0
        self.length = 0
        self._kept: dict[np.dtype, np.ndarray] = {}

    def allreduce(self, x: np.ndarray) -> np.ndarray:
        """The sum over ranks, in place; returns x."""
        self.sent += 2 * (self.size - 1) / self.size * x.nbytes
        return self.team.allreduce(x)

    def summed(self, x: np.ndarray) -> np.ndarray:
        """The sum over ranks, in memory that the next call uses again."""
        memory = self._memory(x.size, x.dtype)
        memory[:] = x.reshape(-1)
        return self.allreduce(memory).reshape(x.shape)

    def complete(self, gradient: np.ndarray, partial: Sequence[Segment]) -> bool:
        """Add up the ranks' terms of these segments' gradients, in place; whether sums are finite.

        Each rank's term is that of its part of each sequence.
        """
        parts = [one.of(gradient).reshape(-1) for one in partial]
        if not parts or self.size == 1:
            return True
        together = self.summed(np.concatenate(parts))
        ends = np.cumsum([part.size for part in parts])[:-1]
        for part, total in zip(parts, np.split(together, ends), strict=True):
            part[:] = total
        return bool(np.isfinite(together).all())

    def gathered(self, x: np.ndarray, length: int | None = None) -> np.ndarray:
        """Allgather along the sequence: the parts (s, .., ...) to (s, t, ...) on all ranks.

        `length`: t; None: that of the sequences at hand.
        """
        places = self.places(self.length if length is None else length)
        whole = np.empty((x.shape[0], places.length, *x.shape[2:]), x.dtype)
        self.sent += (self.size - 1) / self.size * whole.nbytes
        every = self.team.allgather(np.require(x, requirements="CW"))
        for (low, high), part in zip(pairwise(places.edges), every, strict=True):
            whole[:, low:high] = part.reshape(x.shape[0], high - low, *x.shape[2:])
        return whole

    def summed_part(self, x: np.ndarray) -> np.ndarray:
        """Reduce-scatter along the sequence: of the sum of all ranks' x (s, t, ...), this part."""
        self.sent += (self.size - 1) / self.size * x.nbytes
        edges = self.places(x.shape[1]).edges
        parts = [x[:, low:high] for low, high in pairwise(edges)]
        # One stretch of equal length for each rank, which is its slice
        cell = -(-max(part.size for part in parts) // LINE) * LINE
        memory = self._memory(self.size * cell, x.dtype)
        for rank, part in enumerate(parts):
            stretch = memory[rank * cell : (rank + 1) * cell]
            stretch[: part.size].reshape(part.shape)[...] = part
            stretch[part.size :] = 0
        mine = parts[self.rank]
        return self.team.reduce_scatter(memory)[: mine.size].reshape(mine.shape).copy()

    def part(self, x: np.ndarray) -> np.ndarray:
        """This rank's part of x (s, t, ...) along the sequence."""
        self.length = x.shape[1]
        low, high = self.places(self.length).edges[self.rank : self.rank + 2]
        return np.ascontiguousarray(x[:, low:high])

    def places(self, length: int) -> Positions:
        """Which of so many positions each rank has; ValueError if some would have none."""
        return Positions(length, self.size, "in order")

    def _memory(self, n: int, dtype: np.dtype) -> np.ndarray:
        """n elements in the window of the node, where a sum needs no copies; the same on all ranks.

        It grows to the largest that was asked for.
        """
        kept = self._kept.get(dtype)
        if kept is None or kept.size < n:
            kept = self._kept[dtype] = self.team.empty(n, dtype)
        return kept[:n]
