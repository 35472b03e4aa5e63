"""`Pieces`: where the weights of a rank lie in those of the whole model, if layers are cut.

A slice of a matrix by columns is not one stretch of the model's vector. So checkpoints and files
get the vectors of the whole model, which ranks put together one array at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from numba_kernels.optimizers.clipping import squared_length
from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.reductions import Reductions
from tutorial_dl.replica.base import Segment, length

AT_ONCE = 1 << 22  # elements of the whole model that are read from a checkpoint at a time


class Piece(NamedTuple):
    """A rank's part of one array of the whole model."""

    whole: int  # the number of the array's segment
    index: tuple  # array[index] is the part
    alike: bool  # whether all ranks of the tensor axis have it
    partial: bool = False  # whether each then has a term of its gradient, which they must add up


class Pieces:
    """The pieces of one rank.

    Args:
        grid: The ranks; those of `grid.model` hold all pieces of one model.
        whole: The segments of the whole model.
        segments, pieces: This rank's segments, and where each belongs.
        reductions: Those of the tensor axis, which count bytes.
    """

    def __init__(
        self, grid: Grid, whole: Sequence[Segment], segments: Sequence[Segment],
        pieces: Sequence[Piece], reductions: Reductions | None = None,
    ) -> None:  # fmt: skip
        self.grid, self.whole_segments = grid, tuple(whole)
        self.reductions = reductions or Reductions(grid.tensor)
        self.whole_size = length(self.whole_segments)
        self.own = list(zip(segments, pieces, strict=True))
        # The segments whose gradients are terms of a sum over the tensor axis
        self.partial = [segment for segment, piece in self.own if piece.partial]

    def of(self, segments: Sequence[Segment]) -> Pieces:
        """Those of a stage: `segments` have the names of some of these, and other places."""
        by_name = {segment.name: piece for segment, piece in self.own}
        pieces = [by_name[one.name] for one in segments]
        return Pieces(self.grid, self.whole_segments, segments, pieces, self.reductions)

    def complete(self, gradient: np.ndarray) -> bool:
        """Sum the gradients of `partial` segments, in place; whether the sums are finite.

        Collective over the tensor axis: each rank's are those of its part of each sequence.
        """
        parts = [one.of(gradient).reshape(-1) for one in self.partial]
        if not parts or self.grid.tensor.size == 1:
            return True
        together = self.reductions.summed(np.concatenate(parts))
        ends = np.cumsum([part.size for part in parts])[:-1]
        for part, total in zip(parts, np.split(together, ends), strict=True):
            part[:] = total
        return bool(np.isfinite(together).all())

    def arrays(self, vector: np.ndarray) -> Iterator[tuple[Segment, np.ndarray]]:
        """The whole model's arrays, one after the other, of vectors like `parameters`.

        Collective over the ranks that hold a model; all get all arrays, each valid until the next.
        """
        by_whole = {piece.whole: (segment, piece) for segment, piece in self.own}
        for number, whole in enumerate(self.whole_segments):
            array = np.zeros(whole.shape, vector.dtype)
            if number in by_whole:
                segment, piece = by_whole[number]
                if not piece.alike or self.grid.tensor.rank == 0:
                    array[piece.index] = segment.of(vector)
            if self.grid.model.size > 1:
                self.grid.model.allreduce(array)  # of pieces that do not overlap
            yield whole, array

    def joined(self, vector: np.ndarray, first: int, last: int) -> np.ndarray:
        """Elements [first, last) of the whole model's vector. Collective, as `arrays`."""
        found = np.zeros(last - first, vector.dtype)
        for whole, array in self.arrays(vector):
            low, high = max(first, whole.offset), min(last, whole.offset + whole.size)
            if low < high:
                found[low - first : high - first] = array.reshape(-1)[
                    low - whole.offset : high - whole.offset
                ]
        return found

    def take(self, read: Callable[[int, int], np.ndarray], out: np.ndarray) -> None:
        """Fill `out` (..., n), like `parameters`, from the whole model's vectors.

        `read(first, last)` returns elements of them, (..., last - first).
        """
        order = sorted(self.own, key=lambda one: one[1].whole)
        while order:
            first = self.whole_segments[order[0][1].whole].offset
            some = [order.pop(0)]
            while order and self.whole_segments[order[0][1].whole].offset < first + AT_ONCE:
                some.append(order.pop(0))
            end = self.whole_segments[some[-1][1].whole]
            part = read(first, end.offset + end.size)
            for segment, piece in some:
                whole = self.whole_segments[piece.whole]
                at = whole.offset - first
                array = part[..., at : at + whole.size].reshape(*part.shape[:-1], *whole.shape)
                if piece.index != (Ellipsis,):
                    array = array[(..., *piece.index)]
                place = out[..., segment.offset : segment.offset + segment.size]
                place[...] = array.reshape(place.shape)

    def alike(self, n: int) -> np.ndarray:
        """Which of n elements of this rank's vectors all ranks of the tensor axis hold alike."""
        found = np.zeros(n, bool)
        for segment, piece in self.own:
            if piece.alike:
                found[segment.offset : segment.offset + segment.size] = True
        return found

    def squares(self, gradient: np.ndarray) -> float:
        """The sum of squares of what no earlier rank of the tensor axis counts."""
        mine = [s for s, piece in self.own if not piece.alike or self.grid.tensor.rank == 0]
        return sum(squared_length(one.of(gradient).reshape(-1)) for one in mine)
