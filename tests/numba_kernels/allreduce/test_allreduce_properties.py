"""Allreduce of examples that hypothesis draws: any length, any values, any place."""

import numpy as np
import pytest


def properties():
    from hypothesis import given, settings
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    from numba_kernels import Team
    from numba_kernels.allreduce.calls import ALGORITHMS

    # Rank 0 draws for all: what hypothesis draws depends on the modules that a process has loaded.
    # If one rank fails, the others don't wait for it.
    team, examples = Team(deadline=600), []
    p, r = team.size, team.rank
    numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)
    tables = st.integers(0, 700).flatmap(
        lambda n: hnp.arrays(np.float32, (p, n), elements=numbers, fill=numbers)
    )
    repeat = st.sampled_from([1, 1, 37, 400])  # from one barrier to several pieces
    reductions = {"min": np.min, "max": np.max}

    @settings(derandomize=True, database=None, deadline=None, max_examples=120)
    @given(tables, repeat, st.sampled_from(ALGORITHMS), st.booleans(), st.integers(0, 40))
    def draw(table, times, algorithm, in_window, offset):
        examples.append((table, times, algorithm, in_window, offset))

    def holds(table, times, algorithm, in_window, offset):
        x = np.tile(table, times)
        memory = team.empty(offset + x.shape[1]) if in_window else np.empty(offset + x.shape[1])
        mine = memory.astype("float32", copy=False)[offset:]
        for op, reference in reductions.items():
            mine[:] = x[r]
            team.allreduce(mine, op, algorithm)
            # The smallest or largest number is one of the inputs, so it is exact.
            np.testing.assert_array_equal(mine, reference(x, axis=0))
        mine[:] = x[r]
        team.allreduce(mine, "sum", algorithm)
        with np.errstate(all="ignore"):
            wide = x.astype("float64")
            exact = wide.sum(axis=0)
            size = np.abs(np.where(np.isfinite(wide), wide, 0)).sum(axis=0)
            # Beyond float32's range, a partial sum may overflow to infinity, whatever the order.
            sure = np.isfinite(exact) & (size < np.finfo("float32").max)
            assert (np.abs(mine - exact) <= 1e-6 * p * size + 1e-44 * p)[sure].all()
            special = ~np.isfinite(exact) & (size < np.finfo("float32").max)
            np.testing.assert_array_equal(mine[special], exact[special].astype("float32"))

    if r == 0:
        draw()
    for example in team.comm.bcast(examples):
        holds(*example)
    print("held")


@pytest.mark.thorough(but="2")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_length_and_values(on_ranks, ranks):
    assert on_ranks(ranks, properties).count("held") == ranks
