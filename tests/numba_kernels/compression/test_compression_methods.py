"""Top-k, PowerSGD and Adasum against numpy, closed forms and conservation laws."""

import itertools
import json
import math

import ml_dtypes
import numpy as np
import pytest
from compressing import Layer, gradients, same_bits, surroundings

from numba_kernels import compression

HALVES = {"fp16": np.dtype("float16"), "bf16": np.dtype(ml_dtypes.bfloat16)}


# Top-k


def conserved():
    """In every step, all sent + residuals = all gradients (whole float64 numbers add exactly)."""
    from numba_kernels import Team

    team = Team()
    n, generator = 5_003, np.random.default_rng(team.rank)
    for ratio in (0.01, 0.3, 1.0):
        method = compression.TopK(ratio)
        state = method.init(n, dtype="float64")
        given, came = np.zeros(n), np.zeros(n)
        for _ in range(15):
            g = generator.integers(-1000, 1001, n).astype("float64")
            given += g
            before = state.residual + g
            came += method.allreduce(team, g, state, "sum")
            sent = before - state.residual
            assert np.count_nonzero(sent) <= method.k(n) == math.ceil(ratio * n)
            # Each step sends the largest elements, so no residual is larger than a sent one.
            assert ((sent == before) | (sent == 0)).all()
            assert np.abs(state.residual).max() <= np.abs(sent[sent != 0]).min()
            owed, total = np.array(team.comm.allgather((state.residual, given))).sum(axis=0)
            np.testing.assert_array_equal(came + owed, total)


@pytest.mark.thorough(but=["2-node", "3-messages"])
@surroundings
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_sent_and_residual_are_the_gradients(on_ranks, ranks, env):
    on_ranks(ranks, conserved, env=env)


def selections():
    """Top-k picks ties in order, NaN first and no zeros, and rounds k up."""
    from numba_kernels import Team

    team = Team()
    for dtype in ("float32", "float64"):
        method = compression.TopK(0.3)
        ties = np.array([1, -2, 2, 2, -2, 1, 0, 0, 0, 0], dtype)
        state = method.init(10, dtype=dtype)
        got = method.allreduce(team, ties.copy(), state)
        np.testing.assert_array_equal(got, [0, -2, 2, 2, 0, 0, 0, 0, 0, 0])
        np.testing.assert_array_equal(state.residual, ties - got)

        special = np.array([1, np.inf, 2, -np.inf, 3, -np.nan, 4, 5, np.nan, 6], dtype)
        state = method.init(10, dtype=dtype)
        got = method.allreduce(team, special.copy(), state)
        assert np.flatnonzero(got).tolist() == [1, 5, 8] and np.isnan(got[[5, 8]]).all()
        assert not np.isnan(state.residual).any()

        # Ranks send different numbers of elements: rank r has r numbers that are not zero.
        few = np.zeros(1000, dtype)
        few[: team.rank] = 1
        got = method.allreduce(team, few, method.init(1000, dtype=dtype), "sum")
        np.testing.assert_array_equal(got[: team.size + 1], [*range(team.size)[::-1], 0])
    assert [compression.TopK(r).k(100) for r in (0.07, 0.001, 0.011, 1)] == [7, 1, 2, 100]
    without = compression.TopK(0.3, feedback=False)
    state = without.init(10)
    without.allreduce(team, np.arange(10, dtype="float32"), state)
    assert not state.residual.any()


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_picked(on_ranks, ranks):
    on_ranks(ranks, selections)


def descents():
    """Least squares in 500 coordinates, of which top-k sends 1% per step.

    With error feedback the descent converges. Without it, both ranks always send the coordinates in
    which their gradients are large but of opposite sign. All other coordinates never change.
    """
    from numba_kernels import Team

    team = Team()
    n = 500
    target = np.random.default_rng(3).normal(size=n)
    apart = np.zeros(n)
    apart[:20] = 10 if team.rank == 0 else -10  # cancels between two ranks
    ends = {}
    for feedback in (True, False):
        method = compression.TopK(0.01, feedback)
        state, x = method.init(n, dtype="float64"), np.zeros(n)
        for _ in range(800):
            x -= 0.006 * method.allreduce(team, x - target + apart, state)
        ends[feedback] = float(np.linalg.norm(x - target) / np.linalg.norm(target))
    if team.rank == 0:
        print(json.dumps([ends[True], ends[False]]))


def test_error_feedback_converges(on_ranks):
    with_feedback, without = json.loads(on_ranks(2, descents))
    assert with_feedback < 0.3
    assert without > 0.95


# 8, 4 and 1 bit


CODES = {8: np.arange(-127, 128), 4: np.arange(-7, 8), 1: np.array([-1, 1])}


def nearest(x, bits, block=128):
    """The definition: of each block's codes times its scale, the nearest to x, by search."""
    found = np.empty_like(x)
    for first in range(0, x.size, block):
        part = x[first : first + block]
        size = np.abs(part).mean() if bits == 1 else np.abs(part).max() / CODES[bits][-1]
        levels = np.float32(size) * CODES[bits].astype(x.dtype)
        found[first : first + block] = levels[np.abs(part[:, None] - levels).argmin(axis=1)]
    return found


def quantised():
    from numba_kernels import Team

    team = Team()
    p = team.size
    for bits in CODES:
        method = compression.Quantised(bits)
        for n, dtype, close in ((1000, "float64", 1e-6), (5003, "float32", 1e-5)):
            # On equal ranks the sum has p times the scale, so its codes are those of the ranks.
            x = gradients(1, n, dtype)[0] * 10 ** np.linspace(-3, 3, n).astype(dtype)
            state = method.init(n, dtype=dtype)
            got = method.allreduce(team, x.copy(), state)
            ends = [0, n] if team.single_node else team.lanes.edges(n)
            expected = [nearest(x[a:b], bits) for a, b in itertools.pairwise(ends)]
            np.testing.assert_allclose(got, np.concatenate(expected), rtol=close)
            left = np.array(team.comm.allgather(state.residual)).sum(axis=0)
            np.testing.assert_allclose(got * p + left, p * x, atol=close * np.abs(x).max())
            same_bits(team, got)
        # Sent so far + residuals = all gradients so far, and residuals stay bounded.
        n, size = 2000, 0.0
        for op in ("mean", "sum"):
            state, given, came = method.init(n, dtype="float64"), np.zeros(n), np.zeros(n)
            for step in range(60):
                g = gradients(p, n, seed=step)[team.rank]
                given += g
                came += method.allreduce(team, g, state, op) * (p if op == "mean" else 1)
                size = max(size, np.abs(state.residual).max()) if step < 20 else size
            owed, total = np.array(team.comm.allgather((state.residual, given))).sum(axis=0)
            np.testing.assert_allclose(came + owed, total, rtol=0, atol=1e-4 * p)
            # (Of a node with more ranks than others, one may have no residual.)
            assert 0 <= np.abs(state.residual).max() <= 3 * size and np.abs(owed).max() > 0
        # A block of zeros stays zero; one with NaN is NaN, and nothing of it is left.
        x = np.ones(384, "float32")
        x[:128], x[200] = 0, np.nan if team.rank == p - 1 else 1
        state = method.init(384)
        method.allreduce(team, x, state)
        np.testing.assert_array_equal(x[:128], 0)
        (bad,) = np.isnan(x).nonzero()
        ends = [0] if team.single_node else team.lanes.edges(384)
        first = max(end for end in ends if end <= 200) or 128  # a lane begins with a new block
        np.testing.assert_array_equal(bad, np.arange(first, first + 128))
        np.testing.assert_allclose(x[first + 128 :], 1, rtol=1e-6)
        assert not np.isnan(state.residual).any()


@pytest.mark.thorough(but=["1-node", "4-two nodes"])
@surroundings
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_quantised(on_ranks, ranks, env):
    on_ranks(ranks, quantised, env=env)


# PowerSGD


SHAPES = [(40, 30), (30,), (7, 5, 24), (50,)]


def network(shapes=SHAPES):
    """(layers, n) with a gap of three elements behind each."""
    offsets = np.cumsum([0, *(math.prod(shape) + 3 for shape in shapes)])
    return [Layer(int(o), s) for o, s in zip(offsets, shapes, strict=False)], int(offsets[-1])


def low_rank(layers, n, rank, seeds):
    """Every rank's gradient, (ranks, n): matrices whose mean over ranks has rank `rank`."""
    x = np.zeros((len(seeds), n))
    for index, (offset, shape) in enumerate(layers):
        rows, cols = math.prod(shape[:-1]), shape[-1]
        left = np.random.default_rng([9, index]).normal(size=(rows, rank))
        for row, seed in zip(x, seeds, strict=True):
            right = np.random.default_rng([seed, index]).normal(size=(rank, cols))
            flat = (left @ right).reshape(-1) if len(shape) > 1 else right[0]
            row[offset : offset + flat.size] = flat
    return x


def powers():
    from numba_kernels import Team

    team = Team()
    p = team.size
    layers, n = network()
    for dtype, close in (("float64", 1e-12), ("float32", 1e-4)):
        # A mean of rank r is exact after one step. Vectors are always exact.
        for rank, op in ((1, "mean"), (3, "sum"), (5, "mean")):
            x = low_rank(layers, n, rank, range(p))
            method = compression.PowerSGD(rank=rank, seed=4)
            state = method.init(n, layers, dtype)
            for _ in range(3):
                got = method.allreduce(team, x[team.rank].astype(dtype), state, op)
                right = x.sum(axis=0) if op == "sum" else x.mean(axis=0)
                np.testing.assert_allclose(got, right, atol=close * np.abs(x).sum(axis=0).max())
                same_bits(team, got)
        # With factors as large as the matrix, it is a plain allreduce.
        x = gradients(p, n, dtype)
        method = compression.PowerSGD(rank=24)
        state = method.init(n, layers, dtype)
        got = method.allreduce(team, x[team.rank].copy(), state)
        plain = team.allreduce(x[team.rank].copy(), "mean")
        np.testing.assert_array_equal(got, plain)
        assert not state.residual.any() and not state.basis.size

    # p times all means + all residuals = all gradients, and the residuals stay bounded.
    for op in ("mean", "sum"):
        method = compression.PowerSGD(rank=2)
        state, given, came = method.init(n, layers, "float64"), np.zeros(n), np.zeros(n)
        for step in range(40):
            g = gradients(p, n, seed=step)[team.rank]
            given += g
            came += method.allreduce(team, g, state, op) * (p if op == "mean" else 1)
            owed, total = np.array(team.comm.allgather((state.residual, given))).sum(axis=0)
            np.testing.assert_allclose(came + owed, total, rtol=0, atol=1e-11 * p)
        assert np.linalg.norm(state.residual) > 1
        same_bits(team, state.basis)


@pytest.mark.thorough(but=["3-node", "3-messages"])
@surroundings
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_powersgd(on_ranks, ranks, env):
    on_ranks(ranks, powers, env=env)


def warm():
    """Compressing one matrix repeatedly gives its best approximation of rank r (Eckart and Young).

    Residuals are set to zero, so that the matrix stays the same. It also holds after a gradient
    that was zero, one that was not finite, one of 1e-30 and one of 1e25."""
    from numba_kernels import Team

    team = Team()
    u, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(30, 20)))
    v, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(25, 20)))
    matrix = (u * 2.0 ** -np.arange(20)) @ v.T
    method = compression.PowerSGD(rank=3)
    state = method.init(750, [Layer(0, (30, 25))])
    for disturbance in (None, 0.0, np.nan, np.inf):
        if disturbance is not None:
            state.residual[:] = 0
            g = np.full(750, disturbance, "float32")
            method.allreduce(team, g, state)
            np.testing.assert_array_equal(g, 0 if disturbance == 0 else np.nan)
            np.testing.assert_array_equal(state.residual, 0)
        for size in (1, 1e-30, 1e25):
            for _ in range(30):
                state.residual[:] = 0
                got = (size * matrix).astype("float32").reshape(-1)
                method.allreduce(team, got, state)
            best = (u[:, :3] * 2.0 ** -np.arange(3)) @ v[:, :3].T
            np.testing.assert_allclose(got.reshape(30, 25) / size, best, atol=1e-5)


def test_warm_start_finds_the_singular_vectors(on_ranks):
    on_ranks(2, warm)


def saved():
    """A new state with the saved `residual` and `basis` continues with the same results."""
    from numba_kernels import Team

    team = Team()
    layers, n = network()
    for method in (
        compression.TopK(0.05), compression.PowerSGD(rank=2), compression.Quantised(4)
    ):  # fmt: skip
        states = [method.init(n, layers, "float64")]
        for step in range(6):
            if step == 3:
                again = method.init(n, layers, "float64")
                again.residual[:], again.basis[:] = states[0].residual, states[0].basis
                states.append(again)
            g = gradients(team.size, n, seed=step)[team.rank]
            results = [method.allreduce(team, g.copy(), state) for state in states]
            np.testing.assert_array_equal(results[0], results[-1])
            assert not (results[0] == g).all()


def test_state_can_be_saved(on_ranks):
    on_ranks(2, saved)


# Adasum


def tree_of(rows):
    """Adasum of all rows by its definition: of neighbours, then of neighbouring results."""
    rows = list(rows)
    while len(rows) > 1:
        rows = [adasum(*rows[i : i + 2]) for i in range(0, len(rows), 2)]
    return rows[0]


def adasum(a, b=None):
    if b is None:
        return a
    of_a = 1 - a @ b / (2 * (a @ a)) if a.any() else 1
    of_b = 1 - a @ b / (2 * (b @ b)) if b.any() else 1
    return of_a * a + of_b * b


def adasums():
    from numba_kernels import Team

    team = Team()
    p, method = team.size, compression.Adasum()

    def ours(rows, segments=None):
        state = method.init(rows.shape[1], segments, rows.dtype)
        got = method.allreduce(team, rows[team.rank].copy(), state)
        same_bits(team, got)
        return got

    for n in (1, 7, 1003, 20_001):
        x = gradients(p, n)
        np.testing.assert_allclose(ours(x), tree_of(x), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(ours(x.astype("f4")), tree_of(x), rtol=1e-4, atol=1e-5)
        # A factor that is a power of two scales the result exactly.
        np.testing.assert_array_equal(ours(1024 * x), 1024 * ours(x))
        # Parallel gradients (here equal ones) are averaged.
        np.testing.assert_allclose(ours(np.tile(x[0], (p, 1))), x[0], rtol=1e-12)
        # A zero gradient adds nothing; zeros alone give zero.
        alone = np.zeros((p, n))
        np.testing.assert_array_equal(ours(alone), 0)
        alone[p // 2] = x[0]
        np.testing.assert_array_equal(ours(alone), x[0])
    # Orthogonal gradients are added.
    np.testing.assert_array_equal(ours(np.eye(p, 1000)), np.eye(p, 1000).sum(axis=0))
    # a = (1, 0), b = (1, 1): a.b = 1, so a / 2 + 3/4 b.
    if p == 2:
        np.testing.assert_array_equal(ours(np.array([[1.0, 0], [1, 1]])), [1.25, 0.75])

    # Each layer is combined by itself, wherever slices cut it; a gap belongs to the layer before.
    layers, n = network()
    x = gradients(p, n)
    starts = [layer.offset for layer in layers]
    ends = [*starts[1:], n]
    by_layer = [tree_of(x[:, at:end]) for at, end in zip(starts, ends, strict=True)]
    for segments in (layers, starts):
        np.testing.assert_allclose(ours(x, segments), np.concatenate(by_layer), rtol=1e-10)
    if p > 1:
        assert np.abs(ours(x) - np.concatenate(by_layer)).max() > 1e-3


@pytest.mark.thorough(but=["2-node", "2-messages", "3-two nodes"])
@surroundings
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_adasum(on_ranks, ranks, env):
    on_ranks(ranks, adasums, env=env)
