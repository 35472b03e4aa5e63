"""Compares every algorithm, op and dtype on 1 to 5 ranks with numpy on the gathered inputs."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from digests import Digests
from numba import njit

from numba_kernels.allreduce.schedules import SCHEDULES
from numba_kernels.allreduce.steps import Step, send

MESSAGES = (*SCHEDULES, "mpi")
ALGORITHMS = (*MESSAGES, "two_level", "shared_memory")
DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")
# The largest error of a sum of p numbers, relative to the sum of their magnitudes.
ROUNDING = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def dtype_of(name):
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def row(rank, ranks, n, dtype, kind="normal"):
    """The vector of one rank, shape (n,), which any rank can compute."""
    x = (3 * np.random.default_rng([ranks, n, rank]).normal(size=n)).astype(dtype)
    if kind == "special" and n:  # NaN and infinities, at other places on each rank
        x[rank % n] = (np.nan, np.inf)[rank % 2]
    return x


def inputs(ranks, n, dtype, kind="normal"):
    """Every rank's vector, shape (ranks, n)."""
    return np.stack([row(rank, ranks, n, dtype, kind) for rank in range(ranks)])


def expected(x, op):
    """(numpy's result in float64 from all ranks' vectors, the largest error); exact for ints."""
    name = x.dtype.name
    if x.dtype.kind in "iu":
        total = {"sum": np.sum, "product": np.prod, "min": np.min, "max": np.max}
        if op == "mean":
            return np.trunc(x.mean(axis=0, dtype="float64")).astype(x.dtype), 0
        return total[op](x, axis=0).astype(x.dtype), 0
    wide = x.astype("float64")
    finite = np.abs(np.where(np.isfinite(wide), wide, 0))
    reduce = {"sum": np.sum, "mean": np.mean, "product": np.prod, "min": np.min, "max": np.max}[op]
    reference = reduce(wide, axis=0)
    if op in ("min", "max"):
        return reference, 0
    size = np.abs(reference) if op == "product" else finite.sum(axis=0)
    # Halves are summed in float32 and rounded once: the error is half a unit in the last place.
    steps = 1 if name in ("float16", "bfloat16") else len(x)
    magnitude = np.abs(np.where(np.isfinite(reference), reference, 0)) if steps == 1 else size
    off = ROUNDING[name] * steps * magnitude + ROUNDING["float32"] * size * len(x) * (steps == 1)
    return reference, off + (2.0**-25 if name == "float16" else 0)  # its smallest is 2^-24


def compare(mine, reference, off, where):
    got = mine.astype("float64") if mine.dtype.kind != "i" else mine
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = reference.astype(mine.dtype).astype(got.dtype)  # beyond float16's range: infinity
        right = (got == reference) | (got == rounded) | (np.isnan(got) & np.isnan(reference))
        right |= np.abs(got - reference) <= off
    assert right.all(), (where, mine[~right][:3], reference[~right][:3])


def every_case(lengths, kinds, dtypes, algorithms, ops=None):
    """Rank 0 holds the right numbers, and all other ranks hold the same bits as rank 0."""
    from numba_kernels import Team

    team = Team()
    p, digests = team.size, Digests(team)
    lengths = sorted({{"p-1": p - 1, "p": p, "p+1": p + 1}.get(n, n) for n in lengths})

    def reduce(mine, own, op, algorithm, right, seen):
        mine[:] = own
        returned = team.allreduce(mine, op, algorithm)
        assert returned is mine
        where = f"{algorithm} {op} {mine.dtype}[{mine.size}], case {len(digests.noted)}"
        digest = digests.note(mine, where)
        if team.rank == 0 and digest not in seen:  # most algorithms give the same bits
            compare(mine, *right, where)
            seen.add(digest)

    for n, name in itertools.product(lengths, dtypes):
        window = team.empty(n, dtype_of(name))
        # One dtype is enough for NaN and infinities in several pieces.
        both = name.startswith(("float", "bfloat")) and (n <= 5_003 or name == "float32")
        for kind in kinds if both else ("normal",):
            own = row(team.rank, p, n, dtype_of(name), kind)
            x = inputs(p, n, dtype_of(name), kind) if team.rank == 0 else None
            for op in ops or OPS:
                right, seen = expected(x, op) if team.rank == 0 else None, set()
                for algorithm in algorithms:
                    reduce(np.empty(n, own.dtype), own, op, algorithm, right, seen)
                    if algorithm not in MESSAGES:
                        reduce(window, own, op, algorithm, right, seen)
    digests.check()
    assert len(digests.noted) >= len(lengths) * len(dtypes) * len(ops or OPS) * len(algorithms)


OPS = ("sum", "mean", "min", "max", "product")
# Lengths for the one-barrier method, for one piece, and for several with a shorter last one.
LENGTHS = (0, 1, "p-1", "p", "p+1", 1000, 5_003, 100_003)


@pytest.mark.thorough(but="float32 int32 float16-3")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtypes", [DTYPES[::2], DTYPES[1::2]], ids=" ".join)
def test_against_numpy(on_ranks, ranks, dtypes):
    kinds = ("normal", "special")
    on_ranks(ranks, every_case, LENGTHS, kinds, dtypes, ("auto", *ALGORITHMS))


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_long_vectors(on_ranks, ranks):
    """2 ranks run every op; other numbers run one op that rounds and one that does not.

    `make soak` runs it on 4 and 5 ranks, too.
    """
    ops = OPS if ranks == 2 else (("sum", "max"), ("mean", "min"))[ranks % 2]
    on_ranks(ranks, every_case, (1_000_003,), ("normal",), DTYPES, ALGORITHMS, ops)


@pytest.mark.thorough(but="5-3")
@pytest.mark.parametrize(("ranks", "per_node"), [(4, 2), (5, 2), (5, 3), (3, 1)])
def test_several_nodes(on_ranks, ranks, per_node):
    arguments = (LENGTHS, ("special",), ("float32", "int32", "float16"), ("auto", "two_level"))
    on_ranks(ranks, every_case, *arguments, env={"NUMBA_KERNELS_NODE": str(per_node)})


def halves_exactly():
    """The sum is 2052; float16 rounded after every addition would give 2048."""
    from numba_kernels import Team

    team = Team()
    for algorithm in ALGORITHMS:
        for n in (1, 5_000, 50_000):
            x = np.full(n, 2048 if team.rank == 0 else 1, "float16")
            team.allreduce(x, "sum", algorithm)
            assert (x == 2052).all(), algorithm


def test_halves_are_summed_in_float32(on_ranks):
    on_ranks(5, halves_exactly)


def parts_of_a_window():
    """A slice of a window is reduced in place, too, and nothing beside it changes."""
    from numba_kernels import Team

    team = Team()
    for dtype in ("float32", "float64"):
        window = team.empty(1000, dtype)
        window[:] = team.rank
        before = window.copy()
        for first, last in ((0, 1), (17, 905), (999, 1000)):
            before[first:last] = sum(
                before[first] if r == team.rank else r for r in range(team.size)
            )
            team.allreduce(window[first:last])
            team.barrier()
        np.testing.assert_array_equal(window, before)
        assert team.peers(np.zeros(10, dtype)) is None  # ordinary memory is not taken for a window


def test_slices_of_a_window(on_ranks):
    on_ranks(3, parts_of_a_window)


def interrupted_at_every_step(repeats):
    """If every wait returns to Python at once, all kernels must resume correctly."""
    from numba_kernels import Team
    from numba_kernels.allreduce import messages
    from numba_kernels.shared import node_array

    waits = []
    look = Team._look_around
    Team._look_around = lambda self, *a: (waits.append(1), look(self, *a))
    t = Team()
    link = t.routes[0].link
    link.patience[0] = 0.0
    link.words[messages.SPINS] = 0
    t.node_array[[node_array.SPINS, node_array.PATIENCE]] = 0
    for repeat in range(repeats):
        for n, algorithm in itertools.product((1, 1000, 100_000 + repeat), ALGORITHMS):
            x = inputs(t.size, n, "float32")
            for y in (t.empty(n), np.empty(n, "float32")):
                y[:] = x[t.rank]
                t.allreduce(y, "sum", algorithm)
                np.testing.assert_allclose(y, x.sum(axis=0, dtype="float64"), atol=1e-5)
        everyone = t.allgather(x[t.rank, : 40_000 + t.rank])
        assert all((row == x[r, : row.size]).all() for r, row in enumerate(everyone))
        blocks = np.repeat(np.arange(t.size) + 10 * t.rank, 50_000).reshape(t.size, -1)
        assert (t.alltoall(blocks) == 10 * np.arange(t.size)[:, None] + t.rank).all()
        assert (t.broadcast(np.full(100_000, t.rank), 1) == 1).all()
        slices = np.repeat(np.arange(t.size), 50_000)
        mine = t.scatter(slices if t.rank == 1 else None, slices[:50_000] - 1, [50_000] * t.size, 1)
        assert (mine == t.rank).all()
        t.barrier()
    assert len(waits) > 100, f"only {len(waits)} waits came back to Python"


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_waits_resume(on_ranks, ranks):
    """`make soak` repeats it 30 times."""
    on_ranks(ranks, interrupted_at_every_step, 8)


def bad_arguments():
    from numba_kernels import Team

    team = Team()
    good = np.zeros(4, "float32")
    for x, what in (
        ([1.0], "list"),
        (np.zeros(4, "int16"), "int16"),
        (np.zeros(8, "float32")[::2], "contiguous"),
        (np.broadcast_to(np.float32(0), 4), "contiguous and writeable"),
    ):
        with pytest.raises((TypeError, ValueError), match=what):
            team.allreduce(x)
    with pytest.raises(ValueError, match=r"unknown op 'add'; choose one of sum, mean"):
        team.allreduce(good, "add")
    with pytest.raises(
        ValueError, match=r"unknown algorithm 'rings'; choose one of auto, shared_memory"
    ):
        team.allreduce(good, algorithm="rings")
    for algorithm, what in (
        (lambda rank, ranks: [send(ranks)], "Step.to=2, .* does not fit 2 ranks and 1 chunk"),
        (lambda rank, ranks: [Step(0, 0, sent=(1, 2))], "does not fit 2 ranks and 1 chunk"),
        (njit(lambda link, rank, ranks, x: x), r"yields steps, not a compiled kernel"),
    ):
        with pytest.raises(ValueError, match=what):
            team.allreduce(good, algorithm=algorithm)
    for blocks in (np.zeros(4, "float32"), np.float32(0)):
        with pytest.raises((TypeError, ValueError), match=r"blocks, one per rank|numpy array"):
            team.alltoall(blocks)
    with pytest.raises(ValueError, match=f"root {team.size} is not a rank"):
        team.broadcast(good, root=team.size)
    with pytest.raises(ValueError, match=f"root {team.size} is not a rank"):
        team.scatter(good, good, [4, 4], root=team.size)
    for lengths in ([3, 5], [4]):
        with pytest.raises(ValueError, match="lengths must have 2 numbers, and that of this rank"):
            team.scatter(None, good, lengths, root=1 - team.rank)
    team.allreduce(good)  # the team still works


def test_bad_arguments_cost_nothing(on_ranks):
    on_ranks(2, bad_arguments)


def the_same_on_every_run():
    from numba_kernels import Team

    team = Team()
    digest = []
    for algorithm in ALGORITHMS:
        x = team.empty(5000)
        x[:] = inputs(team.size, 5000, "float32")[team.rank]
        team.allreduce(x, "sum", algorithm)
        digest.append(x.tobytes().hex()[:4000])
    if team.rank == 0:
        print("\n".join(digest))


def test_bit_for_bit_again(on_ranks):
    assert on_ranks(3, the_same_on_every_run) == on_ranks(3, the_same_on_every_run)
