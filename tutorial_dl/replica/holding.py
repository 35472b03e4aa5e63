"""`Holding`: which elements of the whole model's vectors a rank holds, and which ranks hold what.

In data parallelism every rank holds all of a model. Where ranks hold parts of it, they differ in
what lies where, not in how they train:

    pipeline      the arrays of some layers
    tensor        slices of arrays, such as columns of a matrix; some arrays on all ranks alike
    context       all arrays (each rank has a part of every sequence)
    ZeRO          a stretch of each group of layers, wherever it begins and ends

The strategy `Synchronous` averages gradients over `copies`, divides the samples of a batch over
`sharers`, and takes the norm of a gradient over `model`. Checkpoints and files have the vectors of
the whole model: `take` fills this rank's vectors from them, `joined` is the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from numba_kernels.optimizers.clipping import squared_length
from tutorial_dl.replica.base import Segment

if TYPE_CHECKING:
    from numba_kernels.team.collectives import Collectives

AT_ONCE = 1 << 22  # elements of the whole model that are read or joined at a time
ALL = (Ellipsis,)


class Part(NamedTuple):
    """`array[index]` lies here, where `array` is the segment `there` of the whole model."""

    here: Segment  # in this rank's vectors
    there: Segment  # one array of the whole model, or any stretch of its vectors
    index: tuple = ALL
    alike: bool = False  # whether all ranks of `Holding.tensor` have it


@dataclass(frozen=True, eq=False)
class Holding:
    """What one rank holds of a model, among the ranks of `team`, which train it together.

    Attributes:
        whole: The segments of the whole model.
        size: Elements of the whole model's vectors.
        mine: The parts that lie here; for a whole model, nothing is listed.
        team: The ranks that train.
        copies: The ranks with the same parts: their gradients are averaged.
        sharers: The ranks among which the samples of a batch are divided; the others compute each
            sample together with one of them.
        model: The ranks that hold one model together; None: each rank has a whole one.
        tensor: The ranks that hold slices of the same layers, if any.
        together: Teams of ranks that compute each sample with this one, and draw the same masks.
        stage: Of ZeRO. With 2 or 3, gradients (and weights) are divided over `team`; the replica
            reduces gradients as it computes them, and makes the updates (`Replica.update_by`).
        gradient: What the rank holds of gradients and of the optimizer's state, if not the same.
        words: What the ranks are, such as "pipeline of 2 stages, 3 copies"; "" if they hold all.
    """

    whole: tuple[Segment, ...]
    size: int
    mine: tuple[Part, ...]
    team: Collectives
    copies: Collectives
    sharers: Collectives
    model: Collectives | None = None
    tensor: Collectives | None = None
    together: tuple[Collectives, ...] = ()
    stage: int = 0
    gradient: Holding | None = None
    words: str = ""

    @classmethod
    def of_all(cls, segments: Sequence[Segment], size: int, team: Collectives) -> Holding:
        """That of a rank with a whole model, which trains with the other ranks of `team`."""
        return cls(tuple(segments), size, (), team, team, team)

    @property
    def complete(self) -> bool:
        """Whether each rank has a whole model, whose vectors are laid out as here."""
        return self.model is None

    @property
    def of_gradient(self) -> Holding:
        """That of gradients and of the optimizer's state."""
        return self.gradient or self

    def take(self, read: Callable[[int, int], np.ndarray], out: np.ndarray) -> None:
        """Fill `out` (..., n), laid out like this rank's vectors, from the whole model's vectors.

        `read(first, last)` returns elements of them, (..., last - first).
        """
        if self.complete:
            out[...] = read(0, self.size)
            return
        order = sorted(self.mine, key=lambda part: part.there.offset)
        while order:
            some = [order.pop(0)]
            first = some[0].there.offset
            while order and order[0].there.offset < first + AT_ONCE:
                some.append(order.pop(0))
            found = read(first, max(one.there.offset + one.there.size for one in some))
            for here, there, index, _ in some:
                at = there.offset - first
                array = found[..., at : at + there.size]
                if index != ALL:
                    array = array.reshape(*found.shape[:-1], *there.shape)[(..., *index)]
                place = out[..., here.offset : here.offset + here.size]
                place[...] = array.reshape(place.shape)

    def joined(self, vector: np.ndarray, first: int, last: int) -> np.ndarray:
        """Elements [first, last) of the whole model's vector, of vectors laid out like this rank's.

        Collective over `model`; each rank may ask for another stretch, also for none.
        """
        if self.complete:
            return vector[first:last]
        found = np.zeros(last - first, vector.dtype)
        mine = self._counted()
        for begin, end in windows(self.whole, self.size):
            # Parts do not overlap, so their sum is what all ranks have.
            window = np.zeros(end - begin, vector.dtype)
            for here, there, index, _ in mine:
                low, high = max(begin, there.offset), min(end, there.offset + there.size)
                if low >= high:
                    continue
                if index != ALL:  # an array lies within a window
                    array = window[low - begin : high - begin].reshape(there.shape)
                    array[index] = here.view(vector)
                else:
                    at = here.offset - there.offset
                    window[low - begin : high - begin] = vector[low + at : high + at]
            if self.model.size > 1:
                self.model.allreduce(window)
            low, high = max(first, begin), min(last, end)
            if low < high:
                found[low - first : high - first] = window[low - begin : high - begin]
        return found

    def squares(self, vector: np.ndarray) -> float:
        """This rank's term of the sum of squares over the whole model; ranks of `model` add up."""
        if self.tensor is None:
            return squared_length(vector)
        return sum(squared_length(one.here.view(vector).reshape(-1)) for one in self._counted())

    def _counted(self) -> list[Part]:
        """The parts on this rank, without those that an earlier rank of `tensor` has, too."""
        first = self.tensor is None or self.tensor.rank == 0
        return [one for one in self.mine if first or not one.alike]

    def alike(self, n: int) -> np.ndarray:
        """Which of n elements of this rank's vectors all ranks of `tensor` hold alike."""
        found = np.zeros(n, bool)
        for here in (one.here for one in self.mine if one.alike):
            found[here.offset : here.offset + here.size] = True
        return found

    def recover(self) -> None:
        """Make the teams usable again, after all ranks have recovered `team`. Collective."""
        teams = (self.copies, self.sharers, self.model, self.tensor, *self.together)
        done = [self.team]
        for one in teams:
            if one is not None and not any(one is known for known in done):
                done.append(one)
                one.recover()


def windows(whole: Sequence[Segment], size: int) -> list[tuple[int, int]]:
    """Stretches that make up `size` elements; each has whole arrays, and about AT_ONCE elements."""
    edges = [0]
    for one in whole:
        if one.offset + one.size - edges[-1] > AT_ONCE and one.offset > edges[-1]:
            edges.append(one.offset)
    return list(zip(edges, [*edges[1:], size], strict=True)) if size else []
