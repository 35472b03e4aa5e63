"""Every compression method against numpy, ml_dtypes, closed forms and conservation laws."""

import doctest
import itertools
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest
from compressing import SURROUNDINGS, Layer, gradients, layers_of, surroundings
from digests import Digests

from numba_kernels import compression

HALVES = {"fp16": np.dtype("float16"), "bf16": np.dtype(ml_dtypes.bfloat16)}


# All methods


def every_length():
    """Every method works in place for every length and dtype, in a window and outside.

    All ranks get the same bits, and no NaN or infinity vanishes.
    """
    from numba_kernels import Team

    team = Team()
    p, digests = team.size, Digests(team)
    for n, name, dtype in itertools.product(
        (0, 1, p - 1, p, p + 1, 1000, 70_001), compression.NAMES, ("float32", "float64")
    ):
        method = compression.get(name)
        x = gradients(p, n, dtype)
        for op in ("mean",) if name == "adasum" else ("mean", "sum"):
            for array in (np.empty(n, dtype), team.empty(n, dtype)):
                where = f"{name} {dtype}[{n}] {op}, window: {array.base is not None}"
                array[:] = x[team.rank]
                assert (
                    method.allreduce(team, array, method.init(n, layers_of(n), dtype), op) is array
                )
                assert np.isfinite(array).all(), where
                digests.note(array, where)
                # (Only once per method and dtype for the longest vector.)
                once = n < 70_001 or (op == "mean" and array.base is None)
                for special in (np.nan, np.inf) if once else ():
                    if n:
                        array[:] = x[team.rank]
                        if team.rank == p - 1:
                            array[n // 2] = special
                        method.allreduce(team, array, method.init(n, layers_of(n), dtype), op)
                        assert not np.isfinite(array[n // 2]), (where, special)
                        digests.note(array, f"{where}, {special}")
    digests.check()


@pytest.mark.thorough(but="3")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_every_length(on_ranks, ranks):
    on_ranks(ranks, every_length)


@pytest.mark.thorough
@pytest.mark.parametrize("env", SURROUNDINGS[1:], ids=["messages", "two nodes"])
def test_every_length_between_nodes(on_ranks, env):
    on_ranks(3, every_length, env=env)


class Counting:
    """A team that counts the bytes it sends, by a ring or a pairwise exchange."""

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


@pytest.mark.thorough(but="3")
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_bytes_are_what_is_sent(on_ranks, ranks):
    on_ranks(ranks, counted)


def test_bytes():
    """Bytes sent for 4 MB of float32 on 4 ranks; a plain ring sends 6 MB."""
    n, layers = 1_000_000, [Layer(0, (1000, 999)), Layer(999_000, (1000,))]
    sent = {name: compression.get(name).bytes(n, 4, layers) for name in compression.NAMES}
    assert sent["fp16"] == sent["bf16"] == pytest.approx(3e6, rel=1e-3)
    for name, bits in (("int8", 8), ("int4", 4), ("sign", 1)):  # and 4 bytes for 128 numbers
        assert sent[name] == pytest.approx(6 * n / 4 * (bits / 8 + 4 / 128), rel=1e-3)
    assert sent["top_k"] == 3 * 10_000 * 8
    assert sent["powersgd"] == 6 / 4 * 4 * (2 * 1999 + 1000)
    assert sent["adasum"] == pytest.approx(6e6, rel=1e-3)
    for name in compression.NAMES:
        assert compression.get(name).bytes(n, 1, layers) == 0


# Halves


def halves(n):
    """Halves are rounded before sending, added in float32 in rank order, and rounded again."""
    from numba_kernels import Team

    team = Team()
    for (name, half), dtype, size in itertools.product(
        HALVES.items(), ("float32", "float64"), (1.0, 1e-6, 1e4)
    ):
        x = size * gradients(team.size, n, dtype)
        with np.errstate(over="ignore"):
            rows = nearest_even(x, half).astype("float32")
            total = np.zeros(n, "float32")
            for row in rows:
                total += row
            # 1 / p is exact for 1, 2 and 4 ranks only, so a tie may be missed for others.
            right = {"sum": total.astype(half), "mean": (total / team.size).astype(half)}
        for op in ("sum", "mean") if team.size in (1, 2, 4) else ("sum",):
            method = compression.get(name)
            got = method.allreduce(team, x[team.rank].copy(), method.init(n, dtype=dtype), op)
            np.testing.assert_array_equal(got, right[op].astype(dtype), f"{name} {op} {dtype}")


@pytest.mark.thorough(but=["2-node", "2-messages", "3-two nodes"])
@surroundings
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_halves_are_rounded_twice(on_ranks, ranks, env):
    on_ranks(ranks, halves, 5003, env=env)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_to_nearest_even(name, dtype):
    """Covers all halves, the ties between neighbours, and the numbers next to those ties."""
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
    if name == "fp16" or dtype == "float32":  # ml_dtypes rounds float64 twice, by way of float32
        np.testing.assert_array_equal(right[~nan].view("u2"), libraries[~nan].view("u2"))
    np.testing.assert_array_equal(got.view(half)[~nan].view("u2"), right[~nan].view("u2"))
    assert np.isnan(got.view(half)[nan].astype("float32")).all()


def nearest_even(x, half):
    """x rounded to the nearest finite half by search, ties to even; infinity beyond the last."""
    values = np.arange(2**15, dtype=np.uint16).view(half)
    with np.errstate(invalid="ignore"):
        values = values[np.isfinite(values)].astype("float64")
    largest = values.size - 1
    # Half a last place above the largest rounds to infinity, as if one more number followed.
    values = np.append(values, 2 * values[-1] - values[-2])
    size = np.abs(x.astype("float64"))
    above = np.clip(np.searchsorted(values, size), 1, largest + 1)
    lower, upper = size - values[above - 1], values[above] - size
    up = (upper < lower) | ((upper == lower) & (above % 2 == 0))
    nearest = np.where(up, above, above - 1).astype(np.uint16)
    return (nearest | (np.signbit(x).astype(np.uint16) << 15)).view(half)


def overflow():
    """60000 + 60000 overflows in fp16, and their mean does not; bf16 holds both."""
    from numba_kernels import Team

    team = Team()
    for name, op, value in (
        ("fp16", "sum", np.inf), ("fp16", "mean", 60_000), ("bf16", "sum", 119_808)
    ):  # fmt: skip
        method = compression.get(name)
        x = np.full(100, 60_000, "float32")
        if name == "bf16":
            x[:] = 59_904  # exact in bf16
        method.allreduce(team, x, method.init(100), op)
        assert (x == value).all(), (name, op, x[0])
    x = np.full(100, 70_000, "float32")
    assert np.isposinf(compression.get("fp16").allreduce(team, x, method.init(100))).all()


def test_overflow_stays_visible(on_ranks):
    on_ranks(2, overflow)


# What can't be used


def mismatched():
    """If one rank calls something else, every rank raises an error that names both calls."""
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
        (lambda: compression.get("zip"), "unknown compression 'zip'; choose one of fp16, bf16"),
        (lambda: compression.get("top_k", k=3), "top_k has no setting 'k'; it has ratio, feedback"),
        (lambda: compression.get("fp16", half="bf16"), "fp16 has no setting 'half'; it has none"),
        (lambda: compression.get(compression.TopK(), ratio=1), "TopK.* has its settings already"),
        (lambda: compression.Cast("fp8"), "unknown half 'fp8'; choose one of fp16, bf16"),
        (lambda: compression.Quantised(2), "bits must be 8, 4 or 1, got 2"),
        (lambda: compression.TopK(0), "ratio must satisfy 0 < ratio <= 1, got 0"),
        (lambda: compression.TopK(float("nan")), "ratio must .* 0 < ratio <= 1, got nan"),
        (lambda: compression.PowerSGD(0), "rank must be a whole number, at least 1, got 0"),
        (lambda: compression.PowerSGD(seed=0.5), "seed must .* number, at least 0, got 0.5"),
        (lambda: compression.PowerSGD().init(9), "PowerSGD .* matrices: call init.n, segments"),
        (lambda: compression.PowerSGD().init(200, TWICE), r"shape \(10,\) at 50 does not fit betw"),
        (lambda: compression.PowerSGD().init(99, TWICE[:1]), r"\(10, 10\) at 0 .* 0 and 99"),
        (lambda: compression.Adasum().init(9, [1, 3]), r"must ascend from 0, got \[1, 3\]"),
        (lambda: compression.TopK().init(2**31), "n must be .* 2.31 - 1 .*, got 2147483648"),
        (lambda: compression.TopK().init(9, dtype="int32"), "float32 or float64, got int32"),
        (lambda: compression.TopK().bytes(9, 0), "ranks must be at least 1, got 0"),
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
        (np.ones(8, "f4"), "mean", "gradient has 8 elements, but its state has 9"),
        (np.ones(9), "mean", "gradient has dtype float64, but its state has float32"),
        (np.ones(9, "f4"), "max", "op of a compressed allreduce must be mean or sum, got 'max'"),
        ([1.0], "mean", "gradient must be a numpy array, got a list"),
        (np.ones(18, "f4")[::2], "mean", "gradient must be contiguous"),
    ):
        with pytest.raises((ValueError, TypeError), match=line):
            method.allreduce(team, x, state, op)
    with pytest.raises(ValueError, match="op must be 'mean' for Adasum, got 'sum'"):
        method = compression.Adasum()
        method.allreduce(team, np.ones(9, "f4"), method.init(9), "sum")


def test_bad_gradients(on_ranks):
    on_ranks(1, bad_gradients)


def test_names():
    assert compression.get("top_k", ratio=0.5) == compression.TopK(0.5)
    assert compression.get("fp16") == compression.Cast("fp16")
    method = compression.PowerSGD(rank=4)
    assert compression.get(method) is method


@pytest.mark.parametrize("file", ["base", "cast", "quantised", "top_k", "powersgd", "adasum"])
def test_examples(file):
    assert not doctest.testmod(import_module(f"numba_kernels.compression.{file}")).failed
