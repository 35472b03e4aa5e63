"""Every way of compressing: against numpy and ml_dtypes, closed forms, and what is conserved."""

import doctest
import itertools
import json
import math
import zlib
from importlib import import_module
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from numba_kernels import compression

HALVES = {"fp16": np.dtype("float16"), "bf16": np.dtype(ml_dtypes.bfloat16)}


class Layer(NamedTuple):
    offset: int
    shape: tuple[int, ...]


def layers_of(n):
    """A matrix, a bias, a gap, a kernel of a convolution: as far as they fit into n elements."""
    wanted = [Layer(0, (20, 12)), Layer(240, (12,)), Layer(256, (3, 3, 4, 5))]
    fit = [layer for layer in wanted if layer.offset + math.prod(layer.shape) <= n]
    return fit or [Layer(0, (n,))]


def same_bits(team, x, where=""):
    digests = team.comm.allgather(zlib.crc32(x.tobytes()))  # by MPI: not by what is being tested
    assert len(set(digests)) == 1, where


def gradients(ranks, n, dtype="float64", seed=0):
    """Every rank's vector, shape (ranks, n); the same on all ranks."""
    return np.random.default_rng([seed, ranks, n]).normal(size=(ranks, n)).astype(dtype)


# All methods


def every_length():
    """Runs for every method, length and dtype; in place; the same bits on all ranks; none of NaN
    and infinity vanishes; arrays in a window and others."""
    from numba_kernels import Team

    team = Team()
    p = team.size
    for n, name, dtype in itertools.product(
        (0, 1, p - 1, p, p + 1, 1000, 70_001), compression.NAMES, ("float32", "float64")
    ):
        method = compression.get(name)
        x = gradients(p, n, dtype)
        for op in ("mean",) if name == "adasum" else ("mean", "sum"):
            for array in (np.empty(n, dtype), team.empty(n, dtype)):
                where = f"{name} {dtype}[{n}] {op} on {p}"
                array[:] = x[team.rank]
                assert (
                    method.allreduce(team, array, method.init(n, layers_of(n), dtype), op) is array
                )
                assert np.isfinite(array).all(), where
                same_bits(team, array, where)
                for special in (np.nan, np.inf):
                    if n:
                        array[:] = x[team.rank]
                        if team.rank == p - 1:
                            array[n // 2] = special
                        method.allreduce(team, array, method.init(n, layers_of(n), dtype), op)
                        assert not np.isfinite(array[n // 2]), (where, special)
                        same_bits(team, array, where)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_every_length(on_ranks, ranks):
    on_ranks(ranks, every_length, timeout=300)


SURROUNDINGS = [{}, {"NUMBA_KERNELS_WINDOW": "0"}, {"NUMBA_KERNELS_NODE": "2"}]
surroundings = pytest.mark.parametrize("env", SURROUNDINGS, ids=["node", "messages", "two nodes"])


@pytest.mark.parametrize("env", SURROUNDINGS[1:], ids=["messages", "two nodes"])
def test_every_length_between_nodes(on_ranks, env):
    on_ranks(3, every_length, timeout=300, env=env)


class Counting:
    """A team that counts the payload it sends, as ring and pairwise exchange send it."""

    def __init__(self, team):
        self.team, self.sent = team, 0.0

    def __getattr__(self, name):
        return getattr(self.team, name)

    def allreduce(self, x, op="sum"):
        agreeing = x.dtype == np.int64
        self.sent += 0 if agreeing else 2 * (self.team.size - 1) / self.team.size * x.nbytes
        return self.team.allreduce(x, op)

    def allgather(self, x):
        self.sent += (self.team.size - 1) * x.nbytes
        return self.team.allgather(x)

    def alltoall(self, x):
        self.sent += (self.team.size - 1) / self.team.size * x.nbytes
        return self.team.alltoall(x)


def counted():
    from numba_kernels import Team

    team = Counting(Team())
    for n, dtype in itertools.product((1, 999, 70_001), ("float32", "float64")):
        for name in compression.NAMES:
            method, layers = compression.get(name), layers_of(n)
            state = method.init(n, layers, dtype)
            team.sent = 0.0
            method.allreduce(team, gradients(team.size, n, dtype)[team.rank], state)
            assert team.sent == pytest.approx(method.bytes(n, team.size, layers, dtype)), name


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_bytes_are_what_is_sent(on_ranks, ranks):
    on_ranks(ranks, counted, timeout=300)


def test_bytes():
    """Of 4 MB of float32 on 4 ranks: 6 MB by a plain ring."""
    n, layers = 1_000_000, [Layer(0, (1000, 999)), Layer(999_000, (1000,))]
    sent = {name: compression.get(name).bytes(n, 4, layers) for name in compression.NAMES}
    assert sent["fp16"] == sent["bf16"] == pytest.approx(3e6, rel=1e-3)
    assert sent["top_k"] == 3 * 10_000 * 8
    assert sent["powersgd"] == 6 / 4 * 4 * (2 * 1999 + 1000)
    assert sent["adasum"] == pytest.approx(6e6, rel=1e-3)
    for name in compression.NAMES:
        assert compression.get(name).bytes(n, 1, layers) == 0


# Halves


def nearest(x, half):
    """x to the nearest half. (ml_dtypes takes float64 by way of float32, and so rounds twice.)"""
    best = x.astype(half)
    for step in (-1, 1):
        other = (best.view("uint16") + np.uint16(step % 2**16)).view(half)
        with np.errstate(invalid="ignore"):
            closer = abs(x - other.astype("float64")) < abs(x - best.astype("float64"))
        best = np.where(closer & np.isfinite(best.astype("float64")), other, best)
    return best


def halves(n):
    """Rounded once before it leaves, added in float32 in the order of ranks, rounded once more."""
    from numba_kernels import Team

    team = Team()
    for (name, half), dtype, size in itertools.product(
        HALVES.items(), ("float32", "float64"), (1.0, 1e-6, 1e4)
    ):
        x = size * gradients(team.size, n, dtype)
        with np.errstate(over="ignore"):
            rows = nearest(x, half).astype("float32")
            total = np.zeros(n, "float32")
            for row in rows:
                total += row
            # 1 / p is exact for 1, 2 and 4 ranks only, so a tie may be missed for others.
            right = {"sum": total.astype(half), "mean": (total / team.size).astype(half)}
        for op in ("sum", "mean") if team.size in (1, 2, 4) else ("sum",):
            method = compression.get(name)
            got = method.allreduce(team, x[team.rank].copy(), method.init(n, dtype=dtype), op)
            np.testing.assert_array_equal(got, right[op].astype(dtype), f"{name} {op} {dtype}")


@surroundings
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_halves_are_rounded_twice(on_ranks, ranks, env):
    on_ranks(ranks, halves, 5003, env=env)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_to_nearest_even(name, dtype):
    """All halves, the ties between neighbours, and the numbers beside those ties."""
    from numba_kernels.compression import cast

    half = HALVES[name]
    every = np.arange(2**16, dtype=np.uint16).view(half)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        numbers = np.sort(every[np.isfinite(every)].astype(dtype))
    ties = numbers[:-1] + (numbers[1:] - numbers[:-1]) / 2
    beyond = np.array([65519.99, 65520, 3.39e38, 3.4e38, np.inf, np.nan, 1e-50, 1e-30], dtype)
    infinity = np.dtype(dtype).type(np.inf)
    beside = [np.nextafter(ties, infinity), np.nextafter(ties, -infinity)]
    x = np.concatenate([numbers, ties, *beside, beyond, -beyond])
    got = np.empty(x.size, cast.CARRIERS[name])
    cast.round_to(got, x)
    right, nan = nearest_even(x, half), np.isnan(x)
    with np.errstate(over="ignore"):
        libraries = x.astype(half)
    if name == "fp16" or dtype == "float32":  # ml_dtypes rounds float64 by way of float32: twice
        np.testing.assert_array_equal(right[~nan].view("u2"), libraries[~nan].view("u2"))
    np.testing.assert_array_equal(got.view(half)[~nan].view("u2"), right[~nan].view("u2"))
    assert np.isnan(got.view(half)[nan].astype("float32")).all()


def nearest_even(x, half):
    """x to the nearest of the finite halves, ties to even, by search; infinity beyond the last."""
    values = np.arange(2**15, dtype=np.uint16).view(half)
    with np.errstate(invalid="ignore"):
        values = values[np.isfinite(values)].astype("float64")
    largest = values.size - 1
    # beyond the largest by half of a last place: to infinity, as if one more number followed
    values = np.append(values, 2 * values[-1] - values[-2])
    size = np.abs(x.astype("float64"))
    above = np.clip(np.searchsorted(values, size), 1, largest + 1)
    lower, upper = size - values[above - 1], values[above] - size
    up = (upper < lower) | ((upper == lower) & (above % 2 == 0))
    nearest = np.where(up, above, above - 1).astype(np.uint16)
    return (nearest | (np.signbit(x).astype(np.uint16) << 15)).view(half)


def overflow():
    """60000 + 60000 is more than fp16 holds; their mean isn't. bf16 holds both."""
    from numba_kernels import Team

    team = Team()
    for name, op, value in (
        ("fp16", "sum", np.inf), ("fp16", "mean", 60_000), ("bf16", "sum", 119_808)
    ):  # fmt: skip
        method = compression.get(name)
        x = np.full(100, 60_000, "float32")
        if name == "bf16":
            x[:] = 59_904  # that is in bf16
        method.allreduce(team, x, method.init(100), op)
        assert (x == value).all(), (name, op, x[0])
    x = np.full(100, 70_000, "float32")
    assert np.isposinf(compression.get("fp16").allreduce(team, x, method.init(100))).all()


def test_overflow_stays_visible(on_ranks):
    on_ranks(2, overflow)


# Top-k


def conserved():
    """Whole numbers in float64 add up exactly: all sent + residual = all gradients, every step."""
    from numba_kernels import Team

    team = Team()
    n, generator = 5_003, np.random.default_rng(team.rank)
    for ratio in (0.01, 0.3, 1.0):
        method = compression.TopK(ratio)
        state = method.init(n, dtype="float64")
        given, came = np.zeros(n), np.zeros(n)
        for _ in range(50):
            g = generator.integers(-1000, 1001, n).astype("float64")
            given += g
            before = state.residual + g
            came += method.allreduce(team, g, state, "sum")
            sent = before - state.residual
            assert np.count_nonzero(sent) <= method.k(n) == math.ceil(ratio * n)
            # What was sent is whole numbers of m, and the largest: no residual is larger.
            assert ((sent == before) | (sent == 0)).all()
            assert np.abs(state.residual).max() <= np.abs(sent[sent != 0]).min()
            owed, total = np.array(team.comm.allgather((state.residual, given))).sum(axis=0)
            np.testing.assert_array_equal(came + owed, total)


@surroundings
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_sent_and_residual_are_the_gradients(on_ranks, ranks, env):
    on_ranks(ranks, conserved, env=env)


def selections():
    """What is picked: ties in order, NaN first, no zeros; k of a state that was saved."""
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

        # Lengths that differ: rank r has r numbers that are not zero.
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
    """Least squares, of 500 coordinates 1% a step.

    With error feedback it arrives. Without, both ranks send for ever what they disagree about:
    there gradients are large, but of opposite sign. All other coordinates stay where they began.
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
        # A mean of rank r comes out at once. Vectors come out in any case.
        for rank, op in ((1, "mean"), (3, "sum"), (5, "mean")):
            x = low_rank(layers, n, rank, range(p))
            method = compression.PowerSGD(rank=rank, seed=4)
            state = method.init(n, layers, dtype)
            for _ in range(3):
                got = method.allreduce(team, x[team.rank].astype(dtype), state, op)
                right = x.sum(axis=0) if op == "sum" else x.mean(axis=0)
                np.testing.assert_allclose(got, right, atol=close * np.abs(x).sum(axis=0).max())
                same_bits(team, got)
        # With factors as large as the matrix nothing is compressed: a plain allreduce.
        x = gradients(p, n, dtype)
        method = compression.PowerSGD(rank=24)
        state = method.init(n, layers, dtype)
        got = method.allreduce(team, x[team.rank].copy(), state)
        plain = team.allreduce(x[team.rank].copy(), "mean")
        np.testing.assert_array_equal(got, plain)
        assert not state.residual.any() and not state.basis.size

    # Conservation: p times all means + what all ranks owe = all gradients, and it stays bounded.
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


@surroundings
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_powersgd(on_ranks, ranks, env):
    on_ranks(ranks, powers, timeout=300, env=env)


def warm():
    """Of one matrix, again and again: the best of rank r, as the singular values say (Eckart and
    Young); residuals are set to zero so that it is always the same matrix. Also after a gradient
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
    """What went into a fresh state by way of `residual` and `basis` goes on as if never stopped."""
    from numba_kernels import Team

    team = Team()
    layers, n = network()
    for method in (compression.TopK(0.05), compression.PowerSGD(rank=2)):
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
    """Adasum of all rows, from the definition: neighbours, then neighbours of these."""
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
        # By a power of two the result is scaled exactly.
        np.testing.assert_array_equal(ours(1024 * x), 1024 * ours(x))
        # Parallel gradients, which are all the same one, are averaged.
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

    # By layer: each layer on its own, wherever ranks' slices cut it; gaps belong to the one before.
    layers, n = network()
    x = gradients(p, n)
    starts = [layer.offset for layer in layers]
    ends = [*starts[1:], n]
    by_layer = [tree_of(x[:, at:end]) for at, end in zip(starts, ends, strict=True)]
    for segments in (layers, starts):
        np.testing.assert_allclose(ours(x, segments), np.concatenate(by_layer), rtol=1e-10)
    if p > 1:
        assert np.abs(ours(x) - np.concatenate(by_layer)).max() > 1e-3


@surroundings
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_adasum(on_ranks, ranks, env):
    on_ranks(ranks, adasums, timeout=300, env=env)


# What can't be used


def mismatched():
    """One rank calls something else: all of them are told what each asked for."""
    from numba_kernels import MismatchError, Team

    def fails(pattern, name, n, op="mean", layers=None, dtype="float32", **settings):
        team = Team()
        method = compression.get(name, **settings)
        with pytest.raises(MismatchError, match=pattern):
            method.allreduce(team, np.ones(n, dtype), method.init(n, layers, dtype), op)

    first = Team().rank == 0
    fails(
        r"rank 0 Cast\(half='fp16'\).*; rank 1 Cast\(half='bf16'\)", "fp16" if first else "bf16", 9
    )
    fails(r"0 .*float32\[9\], op='mean'.*1 .*op='sum'", "bf16", 9, "mean" if first else "sum")
    fails(r"0 .*float32\[9\].*1 .*float32\[8\]", "top_k", 9 if first else 8)
    fails(r"0 .*ratio=0.5.*1 .*ratio=0.25", "top_k", 9, ratio=0.5 if first else 0.25)
    fails(r"0 .*\(float32.*1 .*\(float64", "adasum", 9, dtype="float32" if first else "float64")
    fails("other segments", "adasum", 9, layers=[0, 3] if first else [0, 4])


def test_mismatch_is_told(on_ranks):
    on_ranks(2, mismatched)


TWICE = [Layer(0, (10, 10)), Layer(50, (10,))]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda: compression.get("zip"), "unknown compression 'zip'; one of fp16, bf16, top_k, "),
        (lambda: compression.get("top_k", k=3), "top_k has no setting 'k'; it has ratio, feedback"),
        (lambda: compression.get("fp16", half="bf16"), "fp16 has no setting 'half'; it has none"),
        (lambda: compression.get(compression.TopK(), ratio=1), "TopK.* has its settings already"),
        (lambda: compression.Cast("fp8"), "half is 'fp8'; one of fp16, bf16 is needed"),
        (lambda: compression.TopK(0), "ratio is 0; 0 < ratio <= 1 is needed"),
        (lambda: compression.TopK(float("nan")), "ratio is nan; 0 < ratio <= 1 is needed"),
        (lambda: compression.PowerSGD(0), "rank is 0; a whole number from 1 up is needed"),
        (lambda: compression.PowerSGD(seed=0.5), "seed is 0.5; a whole number from 0 up"),
        (lambda: compression.PowerSGD().init(9), "PowerSGD compresses matrices: init.n, segments"),
        (lambda: compression.PowerSGD().init(200, TWICE), r"shape \(10,\) at 50 does not fit betw"),
        (lambda: compression.PowerSGD().init(99, TWICE[:1]), r"\(10, 10\) at 0 .* 0 and 99"),
        (lambda: compression.Adasum().init(9, [1, 3]), r"layers begin at \[1, 3\]; ascending"),
        (lambda: compression.TopK().init(2**31), "n is 2147483648; from 0 to 2.31 - 1 elements"),
        (lambda: compression.TopK().init(9, dtype="int32"), "dtype int32; float32 or float64"),
        (lambda: compression.TopK().bytes(9, 0), "ranks is 0; 1 or more is needed"),
    ],
)  # fmt: skip
def test_what_cannot_be_used(wrong, line):
    with pytest.raises((ValueError, TypeError), match=line) as error:
        wrong()
    assert "\n" not in str(error.value)


def bad_gradients():
    from numba_kernels import Team

    team, method = Team(), compression.TopK()
    state = method.init(9)
    for x, op, line in (
        (np.ones(8, "f4"), "mean", "gradient has 8 elements, its state 9"),
        (np.ones(9), "mean", "gradient has dtype float64, its state float32"),
        (np.ones(9, "f4"), "max", "op is 'max'; a compressed allreduce does mean or sum"),
        ([1.0], "mean", "gradient is a list; a numpy array is needed"),
        (np.ones(18, "f4")[::2], "mean", "gradient must be contiguous"),
    ):
        with pytest.raises((ValueError, TypeError), match=line):
            method.allreduce(team, x, state, op)
    with pytest.raises(ValueError, match="op is 'sum'; Adasum"):
        method = compression.Adasum()
        method.allreduce(team, np.ones(9, "f4"), method.init(9), "sum")


def test_bad_gradients(on_ranks):
    on_ranks(1, bad_gradients)


def test_names():
    assert compression.get("top_k", ratio=0.5) == compression.TopK(0.5)
    assert compression.get("fp16") == compression.Cast("fp16")
    method = compression.PowerSGD(rank=4)
    assert compression.get(method) is method


@pytest.mark.parametrize("file", ["base", "cast", "top_k", "powersgd", "adasum"])
def test_examples(file):
    assert not doctest.testmod(import_module(f"numba_kernels.compression.{file}")).failed
