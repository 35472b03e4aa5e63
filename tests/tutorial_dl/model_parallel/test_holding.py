"""What each rank holds of a model: parts of its arrays, and the whole model's vectors again."""

import numpy as np
import pytest

from numba_kernels.team.team import Team
from tutorial_dl import Trainer, strategies
from tutorial_dl.model_parallel import Grid
from tutorial_dl.replica import CurveReplica, holding
from tutorial_dl.replica.base import Segment, lay_out, length
from tutorial_dl.replica.holding import ALL, Holding, Part

ARRAYS = [("first", (4, 6)), ("bias", (6,)), ("norm", (3,)), ("second", (6, 2)), ("last", (2, 2))]
AXES = {"first": 1, "bias": 0, "norm": None, "second": 0, "last": None}
WHOLE = lay_out(ARRAYS, align=8)
N = length(WHOLE)
# Gaps between arrays hold zeros.
VECTOR = np.zeros(N)
for _one in WHOLE:
    _one.view(VECTOR)[...] = np.random.default_rng(_one.offset).standard_normal(_one.shape)


def by_layers(grid):
    """This rank's parts, of two stages, the second beginning at "second"; layers are cut, too."""
    stages = [ARRAYS] if grid.axes["pipeline"] == 1 else [ARRAYS[:3], ARRAYS[3:]]
    there = {one.name: one for one in WHOLE}
    shapes, indices = [], []
    for name, shape in stages[grid.pipe.rank]:
        index, axis = ALL, AXES[name]
        if axis is not None and grid.tensor.size > 1:
            size = shape[axis] // grid.tensor.size
            part = [slice(None)] * len(shape)
            part[axis] = slice(grid.tensor.rank * size, (grid.tensor.rank + 1) * size)
            index, shape = tuple(part), (*shape[:axis], size, *shape[axis + 1 :])
        shapes.append((name, shape))
        indices.append(index)
    here = lay_out(shapes, align=4)
    return [
        Part(one, there[one.name], index, grid.tensor.size > 1 and AXES[one.name] is None)
        for one, index in zip(here, indices, strict=True)
    ]


def of_stretches(team):
    """ZeRO: slices of two groups of layers, which begin and end anywhere."""
    mine, at, middle = [], 0, WHOLE[2].offset
    for begin, end in ((0, middle), (middle, N)):
        first, last = team.slice_of(end - begin)
        there = Segment("", begin + first, (last - first,))
        mine.append(Part(Segment("", at, there.shape), there))
        at += there.size
    return Holding(WHOLE, N, tuple(mine), team, team, team, team)


def test_parts_and_the_whole(on_ranks):
    on_ranks(4, there_and_back)


def there_and_back():
    rows, team = np.stack([VECTOR, 2 * VECTOR]), Team()
    cases = [
        (grid, grid.holding(WHOLE, N, by_layers(grid)))
        for grid in (Grid(team, tensor=2), Grid(team, 2, 2), Grid(team, 2))
    ]
    for at_once in (holding.AT_ONCE, 25):  # the second reads and joins several windows
        for grid, held in [*cases, (None, of_stretches(team))]:
            before, holding.AT_ONCE = holding.AT_ONCE, at_once
            try:
                same(grid, held, rows)
            finally:
                holding.AT_ONCE = before


def same(grid, held, rows):
    own = np.zeros((2, length([one.here for one in held.mine])))
    held.take(lambda first, last: rows[:, first:last], own)
    np.testing.assert_array_equal(own[1], 2 * own[0])
    for here, there, index, _ in held.mine:
        np.testing.assert_array_equal(here.view(own[0]), there.view(VECTOR)[index])
    # Each rank may ask for other elements, or for none.
    for first, last in ((0, N), (3 + held.team.rank, 20), (20, 20), (25, N - 1)):
        np.testing.assert_array_equal(held.joined(own[0], first, last), VECTOR[first:last])
    squares = held.model.allreduce(np.array([held.squares(own[0])]))
    np.testing.assert_allclose(squares, [(VECTOR**2).sum()])
    alike = {one.here.name for one in held.mine if one.alike}
    cut = grid is not None and grid.tensor.size > 1
    assert alike == ({"norm", "last"} & {one.here.name for one in held.mine} if cut else set())
    assert held.alike(own.shape[1]).sum() == sum(one.here.size for one in held.mine if one.alike)


def test_a_whole_model_is_read_and_joined_where_it_lies():
    team = Team()
    held = Holding.of_all(WHOLE, N, team)
    own = np.zeros(N)
    held.take(lambda first, last: VECTOR[first:last], own)
    np.testing.assert_array_equal(own, VECTOR)
    assert np.shares_memory(held.joined(own, 3, 9), own) and held.complete


def test_what_ranks_are_in_words(on_ranks):
    on_ranks(4, words)


def words():
    team = Team()
    for grid, said in (
        (Grid(team, 2), "pipeline of 2 stages, 2 copies"),
        (Grid(team, tensor=2), "tensor groups of 2, 2 copies"),
        (Grid(team, 2, 2), "tensor groups of 2, 2 stages, 1 copy"),
        (Grid(team, context=2), "context groups of 2, 2 copies"),
        (Grid(team, 2, context=2), "pipeline of 2 stages, 2 parts of sequences, 1 copy"),
    ):
        assert grid.holding(WHOLE, N).words == said


def test_only_synchronous_trains_parts():
    grid, part = Grid(Team(), tensor=1), CurveReplica(2)
    part.holding = grid.holding(part.segments, 3)
    data = np.zeros(8), np.zeros(8)
    for strategy, line in (
        ("downpour", r"strategy 'downpour' takes whole models and samples, and here ranks have"),
        (strategies.Synchronous(Team()), "and the strategy must have the same team"),
    ):
        with pytest.raises(ValueError, match=line):
            Trainer(part, data, strategy)
    for name in ("Sharded", "Pipelined", "TensorParallel", "ContextParallel"):
        with pytest.raises(ImportError, match=rf"strategies.{name} is gone: .* Trainer\("):
            getattr(strategies, name)
