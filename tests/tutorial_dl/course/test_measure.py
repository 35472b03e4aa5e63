"""Measuring: fits against known numbers, and times of known durations on ranks."""

from __future__ import annotations

import numpy as np
import pytest

from tutorial_dl.course import measure
from tutorial_dl.model_parallel import schedules
from tutorial_dl.model_parallel.simulating import Span, Timetable


def test_the_fit_finds_latency_and_bandwidth():
    sizes = 2 ** np.arange(3, 23)
    for alpha, beta in ((2e-6, 1e-10), (5e-5, 1e-9)):
        assert measure.fit(sizes, alpha + sizes * beta) == pytest.approx((alpha, beta), rel=1e-9)
    # Errors count relative to the time: if all times are 10% off, so are the results.
    assert measure.fit(sizes, 1.1 * (2e-6 + sizes * 1e-10)) == pytest.approx((2.2e-6, 1.1e-10))
    with pytest.raises(ValueError, match="measure again"):
        measure.fit(np.array([8, 1024]), np.array([2e-6, 1e-6]))  # the longer one is faster


def test_an_addition_counts_bytes(monkeypatch):
    ticks = iter([0.0, 0.0, 3.0, 10.0, 12.0])  # one that is not counted, and two: 3 s and 2 s
    monkeypatch.setattr(measure, "perf_counter", lambda: next(ticks))
    assert measure.addition(1000, repeats=2) == 2 / 1000


def test_the_reader_is_told_what_is_not_as_expected(capsys, monkeypatch):
    monkeypatch.delenv(measure.QUIET, raising=False)
    measure.expect(True, "two ranks are faster")
    assert capsys.readouterr().out == ""
    measure.expect(False, "two ranks are faster")
    assert "expected, but not measured: two ranks are faster;" in capsys.readouterr().out
    monkeypatch.setenv(measure.QUIET, "1")
    measure.expect(True, "two ranks are faster")
    with pytest.raises(AssertionError, match="two ranks are faster"):
        measure.expect(False, "two ranks are faster")


def ping_pong_on_ranks():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.rank < 2:
        seconds = measure.ping_pong(comm, [8, 2**22])
        assert seconds.shape == (2,) and seconds[1] > seconds[0] > 0
    else:
        with pytest.raises(ValueError, match="for ranks 0 and 1"):
            measure.ping_pong(comm, [8])


def test_ping_pong(on_ranks):
    on_ranks(3, ping_pong_on_ranks)


def slowest_rank_counts():
    """Real ranks, and a clock that only the slow rank's allreduce moves."""
    from tutorial_dl import Team

    team, now = Team(), [0.0]

    class Slow:
        """A team whose allreduce takes 20 ms on rank 1 and no time on rank 0; records its calls."""

        def __init__(self):
            self.asked, self.seen = [], []

        def barrier(self):
            team.barrier()

        def allreduce(self, x, op="sum", algorithm="auto"):
            if op == "sum":
                self.asked.append(algorithm)
                self.seen.append(float(x[0]))
                now[0] += 0.02 * team.rank
                x *= 2
                return x
            return team.allreduce(x, op=op)

    slow, real = Slow(), measure.perf_counter
    measure.perf_counter = lambda: now[0]
    try:
        seconds = measure.allreduce(slow, np.zeros(2**20, np.float32), "tree", batches=4)
        np.testing.assert_allclose(seconds, [0.02] * 4)
        assert slow.asked == ["tree"] * 5  # one is not counted
        assert slow.seen == [1] * 5  # the vector is written before every reduction
        assert (team.allgather(seconds) == seconds).all()

        # Short vectors have many cycles per batch, so that the time of reading the clock is small.
        slow.asked.clear()
        seconds = measure.allreduce(slow, np.zeros(2**15, np.float32), "ring", batches=2)
        np.testing.assert_allclose(seconds, [0.02] * 2)
        assert slow.asked == ["ring"] * 4 * 3
    finally:
        measure.perf_counter = real


def test_a_reduction_takes_as_long_as_its_slowest_rank(on_ranks):
    on_ranks(2, slowest_rank_counts)


@pytest.mark.parametrize("n", [1, 10**6])  # ten cycles per batch, and one
def test_only_the_reduction_is_counted(monkeypatch, n):
    now = 0.0

    def work(seconds):
        nonlocal now
        now += seconds

    class Vector(np.ndarray):
        def fill(self, value):
            work(2)

        def sum(self):
            work(1)

    class Team:
        def barrier(self):
            work(7)

        def allreduce(self, x, op="sum", algorithm="auto"):
            if op == "sum":
                work(5)
            return x

    monkeypatch.setattr(measure, "perf_counter", lambda: now)
    seconds = measure.allreduce(Team(), np.zeros(n, np.float32).view(Vector), "ring", batches=3)
    np.testing.assert_array_equal(seconds, [5, 5, 5])


def real_ones():
    from tutorial_dl import Team

    team = Team()
    window = team.empty(1000)
    for algorithm in ("naive", "tree", "ring", "shared_memory"):
        x = window if algorithm == "shared_memory" else np.zeros(1000, np.float32)
        seconds = measure.allreduce(team, x, algorithm, batches=3)
        assert seconds.shape == (3,) and (seconds > 0).all()
        assert (x == team.size).all()  # the vector holds ones that were added


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_algorithm_is_measured(on_ranks, ranks):
    on_ranks(ranks, real_ones)


def test_calls_take_turns_on_a_clock_of_their_own(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(measure, "perf_counter", lambda: clock[0])
    order = []

    def takes(name, seconds):
        def call():
            order.append(name)
            clock[0] += seconds + 100 * (len(order) <= 2)  # the first time is slow

        return call

    def wait():
        clock[0] += 10.0  # before: not counted

    def barrier():
        clock[0] += 0.5

    calls = {"a": takes("a", 1.0), "b": takes("b", 2.0)}
    seconds = measure.in_turns(calls, rounds=3, before=wait, after=barrier)
    assert order == ["a", "b"] * 4
    np.testing.assert_array_equal(seconds["a"], [1.5] * 3)
    np.testing.assert_array_equal(seconds["b"], [2.5] * 3)


def test_the_medians_of_actions_per_rank():
    schedule = schedules.gpipe(2, 3)
    seconds = {"F": (1.0, 2.0), "B": (3.0, 4.0), "W": (5.0, 6.0)}  # of ranks 0 and 1
    spans = []
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            took = 99.0 if action.message else seconds[action.kind][rank] + action.batch - 1
            spans.append(Span(rank, action, 10.0, 10.0 + took))
    found = measure.actions([Timetable(schedule, tuple(spans))] * 2)
    assert found == {kind: list(times) for kind, times in seconds.items()}
