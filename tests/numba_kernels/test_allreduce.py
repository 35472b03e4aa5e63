"""Every algorithm, op and dtype on 1 to 5 ranks against numpy on the gathered inputs."""

import itertools

import numpy as np
import pytest

ALGORITHMS = ("naive", "tree", "ring", "recursive_doubling", "rabenseifner", "shared_memory")


def inputs(ranks, n, dtype, kind="normal"):
    """Every rank's vector, shape (ranks, n); the same on all ranks."""
    generator = np.random.default_rng([ranks, n])
    x = generator.normal(size=(ranks, n)).astype(dtype)
    if kind == "special" and n:  # NaN and infinities, at different places of different ranks
        for rank, value in enumerate(itertools.islice(itertools.cycle([np.nan, np.inf]), ranks)):
            x[rank, rank % n] = value
    return x


def every_case():
    from numba_kernels import Team

    team = Team()
    p = team.size
    expected = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}
    for n in sorted({0, 1, max(p - 1, 0), p, p + 1, 1000, 16 * p + 1, 100_003}):
        for dtype, kind in itertools.product(("float32", "float64"), ("normal", "special")):
            x = inputs(p, n, dtype, kind)
            window = team.empty(n, dtype)
            for algorithm, op in itertools.product(ALGORITHMS, expected):
                mine = window if algorithm == "shared_memory" else np.empty(n, dtype)
                mine[:] = x[team.rank]
                returned = team.allreduce(mine, op, algorithm)
                assert returned is mine
                # In float64 numpy is exact to a rounding; the order of additions is ours.
                reference = expected[op](x.astype("float64"), axis=0)
                tolerance = 1e-6 * p if dtype == "float32" else 1e-15 * p
                scale = np.abs(np.where(np.isfinite(x), x, 0)).sum(axis=0, dtype="float64")
                where = f"{algorithm} {op} {dtype}[{n}] {kind} on rank {team.rank}"
                with np.errstate(invalid="ignore"):
                    same = (mine == reference) | (np.isnan(mine) & np.isnan(reference))
                    close = np.abs(mine - reference) <= tolerance * scale
                assert (same | close).all(), where
                # The same bits on every rank.
                everywhere = team.allgather(mine)
                assert (everywhere.tobytes()) == mine.tobytes() * p, where


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_against_numpy(on_ranks, ranks):
    on_ranks(ranks, every_case)


def a_million():
    from numba_kernels import Team

    team = Team()
    n = 1_000_003
    x = inputs(team.size, n, "float32")
    for algorithm in ALGORITHMS[:-1]:
        y = x[team.rank].copy()
        team.allreduce(y, "sum", algorithm)
        np.testing.assert_allclose(y, x.sum(axis=0, dtype="float64"), atol=1e-5)
    window = team.empty(n)
    window[:] = x[team.rank]
    team.allreduce(window)
    np.testing.assert_allclose(window, x.sum(axis=0, dtype="float64"), atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 3])
def test_long_vectors(on_ranks, ranks):
    on_ranks(ranks, a_million)


def parts_of_a_window():
    """A slice of a window is reduced in place too, and nothing beside it changes."""
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
        assert team.peers(np.zeros(10, dtype)) is None  # not everything is taken for a window


def test_slices_of_a_window(on_ranks):
    on_ranks(3, parts_of_a_window)


def interrupted_at_every_step():
    """With no patience at all every wait returns to Python: all kernels must resume rightly."""
    from numba_kernels import Team, messages, node

    waits = []
    look = Team._look_around
    Team._look_around = lambda self, *a: (waits.append(1), look(self, *a))
    t = Team()
    t._link.patience[0] = 0.0
    t._link.words[messages.SPINS] = t._node[node.SPINS] = t._node[node.PATIENCE] = 0
    for _ in range(30):
        for n, algorithm in itertools.product((1, 1000, 30_000), ALGORITHMS):
            x = inputs(t.size, n, "float32")
            y = t.empty(n) if algorithm == "shared_memory" else np.empty(n, "float32")
            y[:] = x[t.rank]
            t.allreduce(y, "sum", algorithm)
            np.testing.assert_allclose(y, x.sum(axis=0, dtype="float64"), atol=1e-5)
        t.barrier()
    assert len(waits) > 100, f"only {len(waits)} waits came back to Python"


@pytest.mark.parametrize("ranks", [2, 4])
def test_waits_resume(on_ranks, ranks):
    on_ranks(ranks, interrupted_at_every_step)


def bad_arguments():
    from numba_kernels import Team

    team = Team()
    good = np.zeros(4, "float32")
    for x, what in (
        ([1.0], "list"),
        (np.zeros(4, "int32"), "int32"),
        (np.zeros(8, "float32")[::2], "contiguous"),
        (np.broadcast_to(np.float32(0), 4), "contiguous and writeable"),
    ):
        with pytest.raises((TypeError, ValueError), match=what):
            team.allreduce(x)
    with pytest.raises(ValueError, match=r"unknown op 'add'; one of sum, mean"):
        team.allreduce(good, "add")
    with pytest.raises(
        ValueError, match=r"unknown algorithm 'rings'; auto or one of shared_memory"
    ):
        team.allreduce(good, algorithm="rings")
    if team.size > 1:
        with pytest.raises(ValueError, match=r"team\.empty"):
            team.allreduce(good, algorithm="shared_memory")
    with pytest.raises(ValueError, match=f"root {team.size} is not a rank"):
        team.broadcast(good, root=team.size)
    team.allreduce(good)  # nothing was lost


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
