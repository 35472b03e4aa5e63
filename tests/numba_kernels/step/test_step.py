"""Compares the synchronous step with the same update in plain numpy on the whole batch."""

import itertools
import time

import numpy as np
import pytest
from steps import compare, weights_in


def against_the_whole_batch():
    """All rules in all sizes; pairs of a dtype and a place for gradients take turns.

    2 ranks run every pair with every rule and size. Over messages there is only one place.
    """
    from rules import RULES

    from numba_kernels import Team

    team = Team()
    sizes = ((1, None), (17, None), (5003, None), (5003, 30.0))
    ways = [*itertools.product(("float32", "float64"), (True, False)[not team.single_node :])]
    for (turn, (n, clip)), (number, name) in itertools.product(enumerate(sizes), enumerate(RULES)):
        some = ways if team.size == 2 else [ways[(turn + number) % len(ways)]]
        for dtype, window in some:
            compare(team, name, n, clip, dtype, window, "private")


@pytest.mark.thorough(but=["3-window", "2-messages"])
@pytest.mark.parametrize(
    ("ranks", "shared"),
    [(1, "1"), *itertools.product((2, 3, 4), "10")],
    ids=lambda value: {"1": "window", "0": "messages"}.get(value),
)
def test_against_the_whole_batch(on_ranks, ranks, shared):
    on_ranks(ranks, against_the_whole_batch, env={"NUMBA_KERNELS_WINDOW": shared})


def own_slice_elsewhere():
    """Each rank's own slice of the gradient lies in pieces at given addresses, outside its row.

    The slice in its row is NaN. There are gaps between layers; one layer is empty.
    """
    from numba_kernels import Team
    from numba_kernels.optimizers import Adam
    from numba_kernels.step.step import Step

    team, random = Team(), np.random.default_rng(4)
    sizes = np.array([1, 4000, 0, 30, 9001, 7])
    offsets = np.array([0, 16, 4016, 4016, 4064, 13072])
    n = 13088
    for dtype, place in itertools.product(("float32", "float64"), ("rows", "common", "private")):
        start = random.normal(size=n).astype(dtype)
        w, alone = weights_in(team, place, n, dtype), start.copy()
        w[:] = start
        step = Step(team, Adam(), w, team.empty(n, dtype))
        assert step.takes_own and not Step(team, Adam(), w, step.gradient, clip_norm=1).takes_own
        first, last = team.slice_of(n)
        state = Adam().init(n, dtype)
        for factor in (1.0, 0.25, 1.0):
            samples = np.arange(team.size)  # rank 0 has no samples, so its values do not matter
            gradients = random.normal(size=(team.size, n)).astype(dtype)
            for offset, size in zip([0, *(offsets + sizes)], [0, *offsets[1:], n], strict=False):
                gradients[:, offset:size] = 0  # gaps
            mine = gradients[team.rank]
            layers = [
                (mine[offset : offset + size] / mine.dtype.type(factor)).copy()
                for offset, size in zip(offsets, sizes, strict=True)
            ]
            step.gradient[:] = mine
            step.gradient[first:last] = np.nan
            step.own = np.array([offsets, sizes, [layer.ctypes.data for layer in layers]])
            step.factor = factor
            step(0.0, int(samples[team.rank]))
            whole = (samples[:, None] * gradients.astype("f8")).sum(axis=0) / samples.sum()
            Adam().update(alone, whole.astype(dtype), state)
            error = np.abs(w - alone).max()
            assert error < (3e-6 if dtype == "float32" else 1e-14), (dtype, place, error)
        step.gradient[:], step.own = gradients[team.rank], Step.own  # and in the usual way
        step(0.0, int(samples[team.rank]))
        Adam().update(alone, whole.astype(dtype), state)
        assert np.abs(w - alone).max() < (3e-6 if dtype == "float32" else 1e-14)


@pytest.mark.parametrize("node", ["3", "2", "1"])
def test_own_slice_elsewhere(on_ranks, node):
    on_ranks(3, own_slice_elsewhere, env={"NUMBA_KERNELS_NODE": node})


def wherever_weights_are(names=None):
    """Weights lie in the window, in one row per rank or in common. Kernels resume every wait."""
    from rules import RULES

    from numba_kernels import Team
    from numba_kernels.shared.node_array import PATIENCE

    team = Team()
    team.node_array[PATIENCE] = 0
    ways = [*itertools.product(("float32", "float64"), ("rows", "common"))]
    for (turn, (n, clip)), (number, name) in itertools.product(
        enumerate(((17, None), (5003, None), (5003, 30.0))), enumerate(names or RULES)
    ):
        some = ways if team.size == 2 else [ways[(turn + number) % 4]]
        for dtype, place in some:
            compare(team, name, n, clip, dtype, True, place)
    for name, place in itertools.product(("adam", "lamb"), ("rows", "common")):
        compare(team, name, 5003, 30.0, "float32", False, place)


@pytest.mark.thorough(but="3")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_wherever_weights_are(on_ranks, ranks):
    on_ranks(ranks, wherever_weights_are)


@pytest.mark.parametrize("env", [{"NUMBA_KERNELS_WINDOW": "0"}, {"NUMBA_KERNELS_NODE": "2"}])
def test_wherever_weights_are_over_messages(on_ranks, env):
    """No memory is common to all ranks; in the second case, pairs of ranks share memory."""
    on_ranks(4, wherever_weights_are, ["momentum", "adam", "lars"], env=env)


def common_memory():
    """Ranks of a node read what one of them writes; other nodes have their own memory."""
    from numba_kernels import MismatchError, Team

    team = Team()
    x = team.empty(1000, "float64", common=True)
    assert not x.any() and x.ctypes.data % 64 == 0
    team.barrier()
    x[team.rank] = 1 + team.rank
    team.barrier()
    expected = [1.0 + r if r in team.node else 0.0 for r in range(team.size)]
    assert x[: team.size].tolist() == expected
    peers = team.peers(x[3:7])
    if len(team.node) > 1:
        assert [peer.ctypes.data for peer in peers] == [x[3:].ctypes.data] * len(team.node)
    other = team.rank == 1
    asked = (10, "f4", other), (10 + other, "f4", False), (10, "f8" if other else "f4", False)
    for n, kind, common in asked:
        time.sleep(0.4 if team.rank == 2 else 0)  # the others have compared their calls long before
        with pytest.raises(MismatchError, match=r"empty\(.*empty\("):
            team.empty(n, kind, common)
    team.barrier()  # the team still works


@pytest.mark.parametrize("nodes", ["1", "2", "3"])
def test_common_memory(on_ranks, nodes):
    on_ranks(3, common_memory, env={"NUMBA_KERNELS_NODE": nodes})


def never_half_done(place):
    """Fast ranks overwrite their gradient and read the weights while others are slow."""
    from numba_kernels import Team
    from numba_kernels.optimizers import SGD
    from numba_kernels.step.step import Step

    team, n = Team(), 400_000
    w, g = weights_in(team, place, n, "float32"), team.empty(n)
    step = Step(team, SGD(1.0), w, g)
    for i in range(1, 61):
        if i % team.size == team.rank:
            time.sleep(0.002)  # this rank is late, and still uses the old weights
        assert w.min() == w.max() == 1 - i
        g[:] = 1
        step(0.0, 1)
        g[:] = np.nan


@pytest.mark.thorough(but="rows-3")
@pytest.mark.parametrize("node", ["3", "2"])
@pytest.mark.parametrize("place", ["private", "rows", "common"])
def test_never_half_done(on_ranks, place, node):
    on_ranks(3, never_half_done, place, env={"NUMBA_KERNELS_NODE": node})


def nan_is_seen():
    """NaN in the gradient of a rank reaches the weights only if the rank has samples."""
    from numba_kernels import Team
    from numba_kernels.optimizers import SGD
    from numba_kernels.step.step import Step

    team = Team()
    for samples, nan in ((0, False), (3, True)):
        for clip in (None, 100.0):
            w, g = np.ones(100, "f4"), team.empty(100)
            g[:] = np.nan if team.rank == 1 else 1
            Step(team, SGD(0.1), w, g, clip_norm=clip)(0.0, samples if team.rank == 1 else 3)
            assert np.isnan(w).all() == nan
            if not nan:
                np.testing.assert_allclose(w, 0.9)


@pytest.mark.parametrize("shared", ["1", "0"], ids=["window", "messages"])
def test_nan(on_ranks, shared):
    on_ranks(2, nan_is_seen, env={"NUMBA_KERNELS_WINDOW": shared})


def clipped_to_a_length(shared):
    """With learning rate 1, weights move by the clipped gradient, however long it was before."""
    from numba_kernels import Team
    from numba_kernels.optimizers import SGD
    from numba_kernels.step.step import Step

    team = Team()
    w, g = np.zeros(1000, "f4"), team.empty(1000) if shared else np.zeros(1000, "f4")
    step = Step(team, SGD(1.0), w, g, clip_norm=0.5)
    for size in (1e-3, 1.0, 1e25):
        g[:] = size * (1 + team.rank)
        w[:] = 0
        step(0.0, 1)
        mean = size * (1 + team.size) / 2 * np.sqrt(1000)
        assert abs(np.linalg.norm(w) / min(mean, 0.5) - 1) < 1e-6, (size, np.linalg.norm(w))


@pytest.mark.parametrize("shared", [True, False], ids=["window", "messages"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_clipped_to_a_length(on_ranks, ranks, shared):
    on_ranks(ranks, clipped_to_a_length, shared)


def refused():
    from numba_kernels import Team
    from numba_kernels.optimizers import LARS, SGD
    from numba_kernels.step.step import Step

    team, three = Team(), np.zeros(3, "f4")
    with pytest.raises(ValueError, match="must have the same shape and dtype"):
        Step(team, SGD(), three, np.zeros(4, "f4"))
    with pytest.raises(ValueError, match=r"clip_norm must .*, got -1\.0"):
        Step(team, SGD(), three, three.copy(), clip_norm=-1.0)
    with pytest.raises(ValueError, match="LARS scales each layer's step"):
        Step(team, LARS(), three, three.copy())


def gradient_of_all():
    from numba_kernels import Team
    from numba_kernels.optimizers import SGD
    from numba_kernels.step.step import Step

    team = Team()
    with pytest.raises(ValueError, match="needs its own gradient, but all ranks share"):
        Step(team, SGD(), np.zeros(9, "f4"), team.empty(9, common=True))


def test_gradient_of_all(on_ranks):
    on_ranks(2, gradient_of_all)


def test_refused(on_ranks):
    on_ranks(1, refused)


def different_clipping():
    """If one rank clips and others don't, every rank raises an error, since their calls differ."""
    from numba_kernels import MismatchError, Team
    from numba_kernels.optimizers import SGD
    from numba_kernels.step.step import Step

    team = Team()
    w, g = np.zeros(100, "f4"), team.empty(100)
    step = Step(team, SGD(), w, g, clip_norm=1.0)
    if team.rank == 1:
        step._parts = False
    with pytest.raises(MismatchError):
        step(0.0, 1)


def test_different_clipping(on_ranks):
    on_ranks(2, different_clipping)
