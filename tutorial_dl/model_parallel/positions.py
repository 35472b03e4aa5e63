"""`Positions`: which positions of a sequence each rank keeps; see context.py for why."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

ORDERS = ("zigzag", "in order")


class Positions:
    """Which positions of a sequence each of `ranks` ranks keeps.

    The sequence is cut into pieces whose lengths differ by at most 1, so nothing is padded.

    Args:
        length: Number of positions, at least one per piece.
        ranks: Number of ranks, C.
        order: "zigzag": 2C pieces, of which rank r keeps r and 2C - 1 - r; "in order": C pieces.

    Attributes:
        pieces: For each rank, the numbers of its pieces, in ascending order.
        edges: Piece i has the positions edges[i] to edges[i + 1] - 1.

    >>> Positions(10, 2).pieces, Positions(10, 2).kept_by(1).tolist()
    (((0, 3), (1, 2)), [2, 3, 4, 5, 6])
    """

    def __init__(self, length: int, ranks: int, order: str = "zigzag") -> None:
        if order not in ORDERS:
            raise ValueError(f"order must be 'zigzag' or 'in order', got {order!r}")
        count = 2 * ranks if order == "zigzag" else ranks
        if length < count:
            raise ValueError(
                f"a sequence of {length} positions is too short for {ranks} ranks, {order}: it "
                f"needs at least {count}, one per piece"
            )
        self.length, self.ranks, self.order = length, ranks, order
        self.edges = [i * length // count for i in range(count + 1)]
        both = (lambda r: (r, count - 1 - r)) if order == "zigzag" else (lambda r: (r,))
        self.pieces = tuple(both(rank) for rank in range(ranks))

    def kept_by(self, rank: int) -> np.ndarray:
        """The positions that `rank` keeps, in the order in which it keeps them."""
        edges = self.edges
        return np.concatenate([np.arange(edges[i], edges[i + 1]) for i in self.pieces[rank]])

    def take(self, x: np.ndarray, rank: int, axis: int = -2) -> np.ndarray:
        """The part of the whole `x` that `rank` keeps; `axis` is that of positions."""
        return np.ascontiguousarray(np.take(x, self.kept_by(rank), axis))

    def join(self, parts: list[np.ndarray], axis: int = -2) -> np.ndarray:
        """The whole array from the parts of all ranks, in their order: the inverse of `take`."""
        where = np.argsort(np.concatenate([self.kept_by(rank) for rank in range(self.ranks)]))
        return np.take(np.concatenate(parts, axis), where, axis)

    def slices(self, rank: int) -> list[slice]:
        """Where each of the rank's pieces lies among the positions that it keeps."""
        sizes = [self.edges[i + 1] - self.edges[i] for i in self.pieces[rank]]
        ends = np.cumsum([0, *sizes]).tolist()
        return [slice(first, last) for first, last in pairwise(ends)]

    def pairs(self, queries: int, keys: int, causal: bool) -> list[tuple[slice, slice, bool]]:
        """The pairs of pieces that rank `queries` computes with the keys of rank `keys`.

        Each is (slice of the queries, slice of the keys, whether later keys must be masked).
        """
        return [
            (q, k, causal and i == j)
            for i, q in zip(self.pieces[queries], self.slices(queries), strict=True)
            for j, k in zip(self.pieces[keys], self.slices(keys), strict=True)
            if not causal or j <= i
        ]
