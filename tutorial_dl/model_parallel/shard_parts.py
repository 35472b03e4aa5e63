"""What a rank holds of one part of a divided model, and whole weights on their way (shards.py)."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_kernels.optimizers.base import Optimizer, State, cut
from numba_kernels.team.exchange import begin
from numba_kernels.team.team import Team
from tutorial_dl.replica.base import Segment


class DividedPart:
    """A layer or a few, and what this rank holds of their vectors of n elements.

    `of`: the `Shards` that it belongs to
    """

    layer: Any = None  # what computes with it
    state: State
    whole: Gathering | None = None  # all weights, or those on their way, in stage 3
    space: Space | None = None  # where they are gathered

    def __init__(
        self, of: Any, segments: Sequence[Segment], whole: np.ndarray,
        weights: np.ndarray | None = None, gradient: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        team, stage = of.team, of.stage
        self.segments, self.n, self.offset = tuple(segments), whole.size, of.n
        n = self.n
        self.edges = [*(team.slice_of(n, rank)[0] for rank in range(team.size)), n]
        own = slice(*team.slice_of(n))
        self.mine = own if stage > 0 else slice(0, n)  # whose state this rank has
        self.keeps = own if stage == 3 else slice(0, n)  # of the weights
        if stage < 3:
            self.weights = whole
        elif weights is None:
            self.weights = whole[own].copy()
        else:
            self.weights = weights
            self.weights[:] = whole[own]
        if stage == 3 and n:
            self.space = Space(n, of.dtype)
        if gradient is None:
            gradient = np.zeros(n if stage < 2 else own.stop - own.start, of.dtype)
        self.gradient = gradient
        self.shard = self.weights if stage == 3 else self.weights[self.mine]
        self.gradient_shard = self.gradient if stage >= 2 else self.gradient[self.mine]

    def optimize_by(self, optimizer: Optimizer, dtype: np.dtype) -> None:
        size = self.mine.stop - self.mine.start
        if optimizer.layered and not self.n:  # no layer whose norms it could take
            self.state = State(0, np.zeros((optimizer.slots, 0), dtype), cut([0], 0, 0), 0)
        else:
            self.state = optimizer.init(size, dtype, self.segments, self.mine.start)

    def views(self, vector: np.ndarray) -> list[np.ndarray]:
        return [one.view(vector) for one in self.segments]


class Space:
    """Memory for n numbers at addresses that stay, whose pages can be given back to the system.

    Dropped numbers are zeros, and take no memory until they are written again.
    """

    def __init__(self, n: int, dtype: Any) -> None:
        dtype = np.dtype(dtype)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._pages = mmap.mmap(-1, max(n * dtype.itemsize, 1), flags=flags)
        self.array = np.frombuffer(self._pages, dtype, n)  # keeps the pages

    def drop(self) -> None:
        self._pages.madvise(mmap.MADV_DONTNEED)


class Gathering:
    """An allgather on its way: in round k each rank sends its slice to the rank k to the right."""

    def __init__(self, team: Team, whole: np.ndarray, edges: Sequence[int]) -> None:
        self.whole, self._on_their_way = whole, []
        own = whole[edges[team.rank] : edges[team.rank + 1]]
        for k in range(1, team.size):
            right, left = (team.rank + k) % team.size, (team.rank - k) % team.size
            incoming = whole[edges[left] : edges[left + 1]]
            self._on_their_way.append(begin(team, own, right, incoming, left, whole.size))

    def wait(self) -> np.ndarray:
        """All slices, once they have arrived."""
        while self._on_their_way:
            self._on_their_way.pop(0).wait()
        return self.whole
