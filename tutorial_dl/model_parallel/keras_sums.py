"""`Sums`: what ranks of a tensor group send each other of tensors, and the bytes of it.

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
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from numba_kernels.shared.node_array import LINE
from numba_kernels.spans import SUMS, span, standing_in
from numba_kernels.team.collectives import Collectives
from tutorial_dl.model_parallel.positions import Positions
from tutorial_dl.replica.base import Segment
from tutorial_dl.replica.keras.collectives import in_order
from tutorial_dl.replica.keras.graphs import tf


@contextmanager
def on_the_team():
    """Within an op of a graph, on a thread of TensorFlow's, for which the rank's own waits."""
    with standing_in():
        try:
            yield
        except Exception as error:
            error._keras_call_info_injected = True  # else Keras makes a RuntimeError of it
            raise


class Sums:
    """Moves tensors between the forms that they have on the ranks of `team`, and counts.

        same        nothing is sent
        sum         the sum of all ranks' terms
        sum_part    this rank's part, along the sequence, of that sum
        gather      all ranks' parts, joined
        take        this rank's part of what all ranks have

    Attributes:
        forward, backward: How many sums there were so far, in either pass.
        gathers: How many allgathers, which only parts of sequences need.
        sent: Bytes so far.
    """

    def __init__(self, team: Collectives) -> None:
        self.team, self.sent = team, 0.0
        self.forward = self.backward = self.gathers = 0
        self._kept: dict[np.dtype, np.ndarray] = {}

    def move(self, how: str, x: tf.Tensor, shape, backward: bool = False) -> tf.Tensor:
        """`x` in another form, of this static shape."""
        if how == "take":
            edges = self.places(x.shape[1]).edges
            return x[:, edges[self.team.rank] : edges[self.team.rank + 1]]
        if how == "same" or self.team.size == 1:
            return tf.identity(x)
        if x.dtype in (tf.float16, tf.bfloat16):  # rounded once, not after each term
            return tf.cast(self.move(how, tf.cast(x, tf.float32), shape, backward), x.dtype)
        reduce = {
            "sum": self.summed,
            "sum_part": self.summed_part,
            "gather": lambda x: self.gathered(x, shape[1]),
        }[how]

        def moved(arrays: list[np.ndarray]) -> list[np.ndarray]:
            self.gathers += how == "gather"
            self.forward += how != "gather" and not backward
            self.backward += how != "gather" and backward
            with on_the_team(), span(SUMS[backward]):
                return [reduce(arrays[0])]

        # `short`: measured with sums of 8 KiB (0.06 ms in place of 0.12) and of 1 MiB (as fast)
        name = "GatherOverRanks" if how == "gather" else "SumOverRanks"
        return in_order(moved, [x], [(x.dtype, shape)], name, short=True)[0]

    def summed(self, x: np.ndarray) -> np.ndarray:
        """The sum over ranks, in memory that the next call uses again."""
        memory = self._memory(x.size, x.dtype)
        memory[:] = x.reshape(-1)
        self.sent += 2 * (self.team.size - 1) / self.team.size * memory.nbytes
        return self.team.allreduce(memory).reshape(x.shape)

    def complete(self, gradient: np.ndarray, partial: Sequence[Segment]) -> bool:
        """Add up the ranks' terms of these segments' gradients, in place; whether sums are finite.

        Each rank's term is that of its part of each sequence.
        """
        parts = [one.view(gradient).reshape(-1) for one in partial]
        if not parts or self.team.size == 1:
            return True
        together = self.summed(np.concatenate(parts))
        ends = np.cumsum([part.size for part in parts])[:-1]
        for part, total in zip(parts, np.split(together, ends), strict=True):
            part[:] = total
        return bool(np.isfinite(together).all())

    def gathered(self, x: np.ndarray, length: int) -> np.ndarray:
        """Allgather along the sequence: the parts (s, .., ...) to (s, length, ...) on all ranks."""
        places = self.places(length)
        whole = np.empty((x.shape[0], places.length, *x.shape[2:]), x.dtype)
        self.sent += (self.team.size - 1) / self.team.size * whole.nbytes
        every = self.team.allgather(np.require(x, requirements="CW"))
        for (low, high), part in zip(pairwise(places.edges), every, strict=True):
            whole[:, low:high] = part.reshape(x.shape[0], high - low, *x.shape[2:])
        return whole

    def summed_part(self, x: np.ndarray) -> np.ndarray:
        """Reduce-scatter along the sequence: of the sum of all ranks' x (s, t, ...), this part."""
        self.sent += (self.team.size - 1) / self.team.size * x.nbytes
        edges = self.places(x.shape[1]).edges
        parts = [x[:, low:high] for low, high in pairwise(edges)]
        # One stretch of equal length for each rank, which is its slice
        cell = -(-max(part.size for part in parts) // LINE) * LINE
        memory = self._memory(self.team.size * cell, x.dtype)
        for rank, part in enumerate(parts):
            stretch = memory[rank * cell : (rank + 1) * cell]
            stretch[: part.size].reshape(part.shape)[...] = part
            stretch[part.size :] = 0
        mine = parts[self.team.rank]
        return self.team.reduce_scatter(memory)[: mine.size].reshape(mine.shape).copy()

    def places(self, length: int) -> Positions:
        """Which of so many positions each rank has; ValueError if some would have none."""
        return Positions(length, self.team.size, "in order")

    def _memory(self, n: int, dtype: np.dtype) -> np.ndarray:
        """n elements in the window of the node, where a sum needs no copies; the same on all ranks.

        It grows to the largest that was asked for.
        """
        kept = self._kept.get(dtype)
        if kept is None or kept.size < n:
            kept = self._kept[dtype] = self.team.empty(n, dtype)
        return kept[:n]
