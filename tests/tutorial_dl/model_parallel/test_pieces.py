"""Slices of a model's arrays on the ranks of a grid, and the whole model's vectors again."""

import numpy as np

from numba_kernels.team.team import Team
from tutorial_dl.model_parallel import Grid
from tutorial_dl.model_parallel.pieces import Piece, Pieces
from tutorial_dl.replica.base import Segment, lay_out, length

ARRAYS = [("first", (4, 6)), ("bias", (6,)), ("norm", (3,)), ("second", (6, 2)), ("last", (2, 2))]
AXES = {"first": 1, "bias": 0, "norm": None, "second": 0, "last": None}
ALL = (Ellipsis,)


def pieces_of(grid, whole):
    """This rank's segments and pieces: of two stages, the second begins at "second"."""
    stages = [ARRAYS] if grid.axes["pipeline"] == 1 else [ARRAYS[:3], ARRAYS[3:]]
    names = [one.name for one in whole]
    shapes, found = [], []
    for name, shape in stages[grid.pipe.rank]:
        index, axis = ALL, AXES[name]
        if axis is not None:
            size = shape[axis] // grid.tensor.size
            part = [slice(None)] * len(shape)
            part[axis] = slice(grid.tensor.rank * size, (grid.tensor.rank + 1) * size)
            index, shape = tuple(part), (*shape[:axis], size, *shape[axis + 1 :])
        shapes.append((name, shape))
        found.append(Piece(names.index(name), index, axis is None))
    return lay_out(shapes, align=4), found


def test_slices_and_the_whole(on_ranks):
    on_ranks(4, there_and_back)


def there_and_back():
    whole = lay_out(ARRAYS, align=8)
    n = length(whole)
    vector = np.zeros(n)
    for one in whole:
        one.of(vector)[...] = np.random.default_rng(one.offset).standard_normal(one.shape)
    rows = np.stack([vector, 2 * vector])
    for grid in (Grid(Team(), tensor=2), Grid(Team(), 2, 2)):
        segments, found = pieces_of(grid, whole)
        pieces = Pieces(grid, whole, segments, found)
        own = np.zeros((2, length(segments)))
        pieces.take(lambda first, last: rows[:, first:last], own)
        for segment, piece in zip(segments, found, strict=True):
            array = whole[piece.whole].of(vector)
            np.testing.assert_array_equal(segment.of(own[0]), array[piece.index])
        np.testing.assert_array_equal(own[1], 2 * own[0])
        for first, last in ((0, n), (3, 20), (20, 20), (25, n - 1)):
            np.testing.assert_array_equal(pieces.joined(own[0], first, last), vector[first:last])
        alike = {one.name for one, piece in zip(segments, found, strict=True) if piece.alike}
        assert alike == {"norm", "last"} & {one.name for one in segments}
        mask = pieces.alike(own.shape[1])
        assert mask.sum() == sum(one.size for one in segments if one.name in alike)
        squares = grid.model.allreduce(np.array([pieces.squares(own[0])]))
        np.testing.assert_allclose(squares, [(vector**2).sum()])
        half = [one for one in segments if one.name != "bias"]
        moved = [Segment(one.name, one.offset + 8, one.shape) for one in half]
        part = pieces.of(moved)
        assert [segment.offset for segment, _ in part.own] == [one.offset for one in moved]
