"""What rules that update whole arrays have in common: which arrays these are, and who owns them.

Most rules treat parameters one by one, so ranks may divide them anywhere. Muon and SOAP multiply
matrices, and Adafactor takes means over rows and columns. Their slices end between arrays: each
array lies in the slice of one rank, its owner, which alone has its state and computes its update.

    arrays     | embedding | W1 W1 W1 | b1 | W2 W2 | b2 | head |      3 ranks
    slices     | rank 0    | rank 1        | rank 2             |     of about equal work

A product of matrices takes min(rows, columns) times the work of an update of single elements, so
slices of equal work have different lengths. What a rule does not update at once may be cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import log, prod

import numpy as np

from ..shared.window import aligned
from .base import NO_LAYERS, Optimizer, State, offsets_of


class OfMatrices(Optimizer):
    """Base class: the arrays that `shape_of` chooses are updated by `turn`, all else by AdamW.

    A rule has a field `adam`: names of matrices that Adam updates, too. If it is None, these are
    embeddings and the last matrix, the head: their rows are vectors of single tokens or classes, of
    which a batch sees a few.
    """

    by_parts = whole = True
    slots = 2
    rule = 2  # AdamW's, for all else

    def turn(self, w: np.ndarray, g: np.ndarray, slots: np.ndarray, step: int) -> None:
        """Update the array `w` in place; g: its gradient; slots (k, w.size): its state's rows."""
        raise NotImplementedError

    def shape_of(self, name: str, shape: tuple[int, ...], last: bool) -> tuple[int, ...] | None:
        """The shape in which an array is updated; None: element by element.

        `last`: whether it is the last one of two or more dimensions.
        """
        if len(shape) < 2 or min(shape) == 0:
            return None
        if self.adam is None:
            return None if last or "embedding" in name.lower() else sides(shape)
        return None if name in self.adam else sides(shape)

    def work(self, shape: tuple[int, ...]) -> int:
        """The work of an update of such an array, per element, in updates of one element."""
        return 1 + min(shape)

    def arrays(self, segments: Iterable, end: int) -> list[tuple[int, int, tuple[int, ...]]]:
        """(first element, last + 1, shape) of each array that `turn` updates, in order.

        Args:
            segments: Objects with an `offset`, and a `shape` and a `name`. What has no shape is a
                vector up to the next one, or to element `end`.
        """
        if segments is None:
            raise ValueError(
                f"{type(self).__name__} updates whole arrays: call init(n, segments=...) with "
                "objects that have an offset, a shape and a name, such as a replica's segments"
            )
        listed = list(segments)
        offsets = offsets_of(listed)
        ends = [*offsets[1:], max(end, offsets[-1])]
        shapes = [
            tuple(getattr(one, "shape", (after - at,)))
            for one, at, after in zip(listed, offsets, ends, strict=True)
        ]
        last = max((i for i, shape in enumerate(shapes) if len(shape) > 1), default=-1)
        found = []
        for i, (one, at, shape) in enumerate(zip(listed, offsets, shapes, strict=True)):
            chosen = self.shape_of(getattr(one, "name", ""), shape, i == last)
            if chosen is not None and prod(shape):
                found.append((at, at + prod(shape), chosen))
        return found

    def edges(self, n: int, ranks: int, segments: Iterable) -> np.ndarray:
        """Where the slices of `ranks` ranks begin and end, int64 (ranks + 1,): between arrays."""
        places, costs, arrays = [0], [0.0], self.arrays(segments, n)
        for first, last, shape in arrays:
            for place, work in ((first, 1), (last, self.work(shape))):
                costs.append(costs[-1] + work * (place - places[-1]))
                places.append(place)
        costs.append(costs[-1] + n - places[-1])
        places.append(n)
        cuts = np.interp(np.linspace(0, costs[-1], ranks + 1), costs, places).astype(np.int64)
        cuts[-1] = n
        for first, last, _ in arrays:
            inside = (first < cuts) & (cuts < last)
            cuts[inside] = np.where(2 * cuts[inside] < first + last, first, last)
        return cuts

    def told(self, segments: Iterable) -> Optimizer:
        """This rule, with the names of all arrays that Adam updates in a model of `segments`.

        A rank that has a part of the model can't tell which matrix is the last.
        """
        segments = list(segments)
        own = {first for first, _, _ in self.arrays(segments, 0)}
        return replace(self, adam=tuple(one.name for one in segments if one.offset not in own))

    def init(
        self, n: int, dtype=np.float32, segments: Iterable | None = None, first: int = 0
    ) -> State:
        slots = aligned(self.slots * n, np.dtype(dtype)).reshape(self.slots, n)
        arrays, pieces, at = [], [], 0
        for low, high, shape in self.arrays(segments, first + n):
            low, high = low - first, high - first
            if high <= 0 or low >= n:
                continue
            if low < 0 or high > n:
                raise ValueError(
                    f"{type(self).__name__} updates whole arrays, but elements {first} to "
                    f"{first + n} end within one: cut where `edges` says"
                )
            if at < low:
                pieces.append([at, low, 0])
            arrays.append((low, high, shape))
            at = high
        if at < n:
            pieces.append([at, n, 0])
        return State(0, slots, np.array(pieces, np.int64).reshape(-1, 3), 0, tuple(arrays))

    def finish(
        self, parameters: np.ndarray, gradient: np.ndarray, state: State, squares=NO_LAYERS
    ) -> None:
        super().finish(parameters, gradient, state, NO_LAYERS)  # of all else
        for low, high, shape in state.arrays:
            w, g = parameters[low:high].reshape(shape), gradient[low:high].reshape(shape)
            self.turn(w, g, state.slots[:, low:high], state.step)


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape as a matrix: dimensions are joined where that is closest to a square.

    >>> sides((3, 3, 16, 32)), sides((64, 4, 16)), sides((4, 16, 64))
    ((144, 32), (64, 64), (64, 64))
    """
    cuts = [(prod(shape[:k]), prod(shape[k:])) for k in range(1, len(shape))]
    return min(cuts, key=lambda cut: abs(log(cut[0] / cut[1])))
