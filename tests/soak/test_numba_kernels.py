"""Bounds for teams, stars, stalls and traces; tests of the same names are in other folders."""

from __future__ import annotations

import time

import clock
import numpy as np
import pytest
from places import MESSAGES, MIXED, WINDOW, places

PLACE = {"1": "window", "0": "messages"}
PLACES = pytest.mark.parametrize("shared", ["1", "0"], ids=["window", "messages"])


@PLACES
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_failures(on_ranks, tests, bound, ranks, shared):
    of, env = tests("test_failures"), {"NUMBA_KERNELS_WINDOW": shared}
    where = f"{ranks} ranks, {PLACE[shared]}"
    on_ranks(ranks, of.rank_fails, env=env)
    bound("all ranks know of a failure", 2, of=where)
    on_ranks(ranks, of.mismatches, env=env)
    bound("calls that differ are named", 2, of=where)
    on_ranks(ranks, of.a_rank_ends, env=env, fresh=True)
    bound("a rank that has left is noticed", 2, of=where)
    on_ranks(ranks, of.interrupted, env=env)
    bound("Ctrl-C after 0.3 s, all ranks know", 1.3, of=where)
    on_ranks(ranks, of.exchanges_fail, env=env)
    of.test_an_exception_ends_a_rank(ranks, {"NUMBA_KERNELS_WINDOW": shared})


@PLACES
def test_deadline(on_ranks, tests, bound, shared):
    on_ranks(2, tests("test_failures").too_late, env={"NUMBA_KERNELS_WINDOW": shared})
    bound("a deadline of 0.3 s", 1.5, of=PLACE[shared])


@PLACES
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_cells_of_a_notebook(on_ranks, tests, bound, ranks, shared):
    on_ranks(ranks, tests("test_recovery").cells, env={"NUMBA_KERNELS_WINDOW": shared})
    bound("a rank fails where others make a team", 2, of=f"{ranks} ranks, {PLACE[shared]}")


@PLACES
@pytest.mark.parametrize("ranks", [2, 3])
def test_many_failures(on_ranks, tests, record, ranks, shared):
    env = {"NUMBA_KERNELS_WINDOW": shared}
    on_ranks(ranks, tests("test_recovery").many_times, 120, env=env, fresh=True)
    where = f"{ranks} ranks, {PLACE[shared]}"
    record(f"120 failures leave nothing behind, {where}", "right", "right", True)


@PLACES
@pytest.mark.parametrize("ranks", [3, 4])
def test_failures_at_random(on_ranks, tests, record, ranks, shared):
    env = {"NUMBA_KERNELS_WINDOW": shared}
    on_ranks(ranks, tests("test_late_failures").at_random, 2, 200, env=env, fresh=True)
    where = f"{ranks} ranks, {PLACE[shared]}"
    record(f"200 failures at random moments, {where}", "right", "right", True)


def test_a_rank_is_stopped_for_15_seconds(tests, record):
    """A stop longer than the default time after which a stall is reported."""
    said, pids = tests("test_stalls").stop_a_rank(2, "1", stall=10, steps=40, seconds=15)
    said_so = "stall: rank 0 has waited 10 s in allreduce(" in said
    said_so &= f"for rank 1 (process {pids[1]} is stopped by a signal)" in said
    back = "stall: rank 1 came after 15 s; allreduce(" in said
    record(
        "a rank stopped for 15 s is reported",
        "told after 10 s",
        "yes" if said_so else said,
        said_so,
    )
    record("and that it is back", "told after 15 s", "yes" if back else said, back)


@places("window", "messages", "mixed")
def test_stars(on_ranks, tests, bound, env):
    of = tests("test_star_faults")
    on_ranks(3, of.leaf_fails, env=env)
    bound("Ctrl-C after 0.5 s in a star's wait", 1.5)
    on_ranks(3, of.hub_fails, env=env)
    bound("leaves know of their hub's end", 3)
    if env != MIXED:
        of.test_kills(env)
        bound("the last leaf knows of its hub's end", 2)


def test_sleepers_are_woken(on_ranks, tests, bound):
    """Without being woken, each side would wait 4 ms more."""
    on_ranks(2, tests("test_star").woken, env=WINDOW)
    bound("a sleeping hub or leaf is woken", 0.003)
    on_ranks(4, tests("test_star").in_order, env=WINDOW)
    bound("processor time of a leaf that waits", 0.2)


def test_allreduce_again_and_again(on_ranks, tests, record):
    """More lengths, ranks and interruptions than `make test-all` has time for."""
    of = tests("test_allreduce")
    for ranks in (4, 5):
        of.test_long_vectors(on_ranks, ranks)
    on_ranks(4, of.interrupted_at_every_step, 30)
    record(
        "long vectors on 4 and 5 ranks, and 30 times interrupted at every step",
        "right",
        "right",
        True,
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_costs(on_ranks, tests, bound, ranks):
    on_ranks(ranks, tests("test_costs").each_rank, ranks)
    bound("the machine is measured", 10, of=f"{ranks} ranks")


def test_predictions(tests, bound, monkeypatch):
    """The best of three: for seconds at a time, messages may be 5 times slower on a shared machine.

    A formula without one of its parts is off by more than the bound each time.
    """
    of = tests("test_nodes")
    monkeypatch.setattr(of, "SECONDS", "2")
    least = min(of.factor_off() for _ in range(3))
    clock.note("predictions are off by a factor, the median", least)
    bound("predictions are off by a factor, the median", 2, "")


def test_the_bench_command(tests, record, tmp_path):
    of = tests("test_bench")
    of.rows_of_allreduce(of.command, 3, tmp_path, of.without_peers(tmp_path / "no_peers"))
    record("starts of the bench's rows", "3", "3", True)


@pytest.mark.parametrize("way", [None, MESSAGES], ids=["window", "messages"])
def test_spans(on_ranks, tests, bound, way):
    """The bound is wide, because there may be more ranks than cores."""
    of = tests("test_trace")
    for ranks in (2, 4):
        on_ranks(ranks, of.one_rank_sleeps, ranks - 1, 2, env=way)
    if way:
        on_ranks(3, of.one_rank_sleeps, -1, 1, env=way)
    on_ranks(3, of.steps, 2, env=way)
    on_ranks(2, of.failed, env=way)
    of.test_times_are_those_of_the_clock()
    where = "messages" if way else "window"
    bound(of.WAITS, 0.2, of=where)
    bound(of.OFF, 0.2, of=where)
    bound("what is not waiting", 0.1, of=where)
    bound("a span is as long as its item", 0.2)


def test_clocks_of_nodes(on_ranks, tests, bound):
    on_ranks(4, tests("test_trace").clocks, -7_000_000_123, env=MIXED)
    bound("clocks are compared to within", 0.01)


def test_fading_gradients_do_not_slow_an_update_down(tests, record):
    """Denormal numbers would make an update 10 to 40 times as slow."""
    of = tests("test_optimizers")
    worst, n = (0.0, ""), 65536
    for rule, _ in of.RULES.values():
        usual = slow = np.inf
        normal = np.ones(n, np.float32), np.ones(n, np.float32), rule.init(n, segments=[0])
        small = of.fading(rule, n)
        for _ in range(100):
            for vectors in (normal, small):
                began = time.perf_counter()
                rule.update(*vectors)
                took = time.perf_counter() - began
                usual, slow = (
                    (min(usual, took), slow) if vectors is normal else (usual, min(slow, took))
                )
        worst = max(worst, (slow / usual, type(rule).__name__))
    ratio, name = worst
    record("an update with fading gradients", "< 3 x", f"{ratio:.2f} x ({name})", ratio < 3)


def test_ranks_that_hang_in_the_doctor(tests, bound, tmp_path, monkeypatch):
    with clock.seconds("ranks that hang are given up (2 s)"):
        tests("test_doctor").test_ranks_that_hang_are_given_up(tmp_path, monkeypatch)
    bound("ranks that hang are given up (2 s)", 30)
