"""Spans have the known durations; nothing is recorded unasked, and lost spans are counted."""

import threading
import time

import clock
import numpy as np
import pytest
from places import MESSAGES, places

from numba_kernels import spans
from numba_kernels.trace import recording

SLEEP = 0.4  # seconds that the late rank sleeps
# Errors of durations are noted here, and asserted in `make soak`.
WAITS, OFF = "a wait is as long as what is waited for, off by", "nobody waits where nobody is late"

ways = places("window", "messages")


def seconds(span):
    return (span[2] - span[1]) / 1e9


def inside(outer, spans):
    return [s for s in spans if outer[1] <= s[1] and s[2] <= outer[2] and s is not outer]


def waiting(outer, spans):
    return sum(seconds(s) for s in inside(outer, spans) if s[0].startswith("wait"))


def check_nesting(spans):
    ends = []
    for name, begin, end in spans:
        assert begin <= end, name
        while ends and ends[-1] <= begin:
            ends.pop()
        assert not ends or end <= ends[-1], f"{name} ends after what it began in"
        ends.append(end)


def one_rank_sleeps(late, round_):
    """The other ranks wait for the sleeping one, in exactly that call, for every kind of call."""
    from numba_kernels import Team, trace

    team = Team()
    x, y, many = team.empty(64), np.ones(64, np.float32), np.ones(300_000)
    calls = {
        "barrier": lambda: team.barrier(),
        "allreduce": lambda: team.allreduce(x),
        "reduce_scatter": lambda: team.reduce_scatter(many),
        "allgather": lambda: team.allgather(y),
        "broadcast": lambda: team.broadcast(y, late),
        "alltoall": lambda: team.alltoall(np.ones((team.size, 2))),
        "scatter": lambda: team.scatter(np.ones(2 * team.size), np.ones(2), [2] * team.size, late),
    }
    if late < 0:  # MPI's own
        calls = {"allreduce": lambda: team.allreduce(y, algorithm="mpi")}
        late = 0
    for call in calls.values():
        call()  # compiled
    for name, call in calls.items():
        team.barrier()
        with trace.Recording() as seen:
            for each in range(4):
                with trace.span("work"):
                    if (each, team.rank) == (round_, late):
                        time.sleep(SLEEP)
                call()
        check_nesting(seen.spans)
        found = [s for s in seen.spans if s[0] == name]
        assert len(found) == 4 and seen.lost == 0, name
        work = [s for s in seen.spans if s[0] == "work"]
        waits = [waiting(call, seen.spans) for call in found]
        came = team.allgather(np.array([work[round_][2]]))[late, 0]  # by the common clock
        if team.rank == late:
            assert seconds(work[round_]) >= SLEEP
            clock.note(OFF, waits[round_])
        else:  # a rank that came earlier has waited until the late one came
            of_call = [s for s in inside(found[round_], seen.spans) if s[0].startswith("wait")]
            assert found[round_][2] > came, name
            assert found[round_][1] > came or of_call[-1][2] > came, name
            clock.note(WAITS, abs(waits[round_] - SLEEP))
            # The rest of a call is communication; a few numbers take hardly any time.
            clock.note("what is not waiting", seconds(found[round_]) - waits[round_])
        clock.note(OFF, max(wait for i, wait in enumerate(waits) if i != round_))


@pytest.mark.thorough(but=["3-window", "2-messages"])
@ways
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_wait_for_a_late_one(on_ranks, ranks, env):
    on_ranks(ranks, one_rank_sleeps, ranks - 1, 2, env=env)


def test_ranks_wait_in_the_mpi_library(on_ranks):
    on_ranks(3, one_rank_sleeps, -1, 1, env=MESSAGES)


def steps(late):
    from numba_kernels import Team, trace
    from numba_kernels.optimizers import LAMB, SGD
    from numba_kernels.step.step import Step

    team = Team()
    n = 5000
    in_passes = {"reduce", "update", "hand out"}
    for rule, segments, names in (
        (SGD(0.1), None, {"reduce + update"}),
        (LAMB(0.1), [0, 1000], in_passes),
    ):
        w, g = team.empty(n), team.empty(n)
        w[:] = 1
        step = Step(team, rule, w, g, segments)

        def once(g=g, step=step):
            g[:] = 1
            step(0.5, 4)

        once()
        team.barrier()
        with trace.Recording() as seen:
            for each in range(3):
                if (each, team.rank) == (1, late):
                    time.sleep(SLEEP)
                once()
        check_nesting(seen.spans)
        outer = [s for s in seen.spans if s[0] in in_passes | {"reduce + update"}]
        assert {s[0] for s in outer} == names
        assert len(outer) == 3 * len(names)
        first = [s for s in outer if s[0].startswith("reduce")]
        waits = [waiting(s, seen.spans) for s in first]
        if team.rank != late:
            assert waits[1] > 0
            clock.note(WAITS, abs(waits[1] - SLEEP))
        clock.note(OFF, max(waits[0], waits[2]))


@ways
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_fused_step(on_ranks, ranks, env):
    on_ranks(ranks, steps, 0, env=env)


def off():
    from numba_kernels import Team, trace

    team = Team()
    with trace.Recording() as seen:
        assert spans.sink is not None
        ring = recording._last_ring
        team.barrier()
        counted = int(ring[spans.COUNT])
        before = list(seen.spans)
    kept = list(seen.spans)
    assert spans.sink is None and spans._word.value == 0 and before == []
    for _ in range(20):
        with trace.span("nobody looks"):
            team.barrier()
        assert [*trace.each("nobody looks", range(3))] == [0, 1, 2]
    assert seen.spans == kept and [s for s in kept if s[0] == "barrier"]
    assert int(ring[spans.COUNT]) == counted
    with trace.Recording() as again:
        pass
    assert again.spans == []


@ways
def test_off(on_ranks, env):
    on_ranks(2, off, env=env)


def overflow():
    from numba_kernels import Team, trace

    team = Team()
    with trace.Recording(limit=10) as seen:
        for number in range(30):
            with trace.span(f"{number}"):
                team.barrier()
        ring, log = recording._last_ring, recording._log
        in_all = int(ring[spans.COUNT]) + log.count
    check_nesting(seen.spans)
    assert 0 < len(seen.spans) <= 20
    assert seen.lost == in_all - len(seen.spans) >= 40
    calls = [s for s in seen.spans if s[0] == "barrier"]
    for wait in (s for s in seen.spans if s[0].startswith("wait")):
        assert any(wait in inside(call, seen.spans) for call in calls), "a wait of a lost call"
    names = [s[0] for s in seen.spans if s[0].isdecimal()]
    assert names == [str(30 - i) for i in range(len(names), 0, -1)], "the last ones"
    # Test the ring by itself, with waits written by hand.
    ring[spans.COUNT] = 25
    table = ring[spans.HEAD :].reshape(10, spans.RECORD)
    for number in range(25):
        table[number % 10] = 0, number, number + 1
    assert [begin for _, begin, _ in log.waits()] == [*range(15, 25)]


def test_more_spans_than_fit(on_ranks):
    on_ranks(2, overflow)


def failed():
    from numba_kernels import DeadlineError, Team, trace

    short, team = Team(deadline=0.2), Team()
    team.barrier()  # compiled
    with trace.Recording() as seen:
        if team.rank == 0:
            with pytest.raises(DeadlineError):
                short.barrier()
            with trace.span("afterwards"):
                time.sleep(0.3)
        else:
            time.sleep(0.5)
        team.barrier()
    check_nesting(seen.spans)
    if team.rank == 0:
        first, last = [s for s in seen.spans if s[0] == "barrier"]
        assert waiting(first, seen.spans) >= 0.2
        clock.note(OFF, waiting(first, seen.spans) - 0.2)
        clock.note(OFF, waiting(last, seen.spans))
        (afterwards,) = [s for s in seen.spans if s[0] == "afterwards"]
        assert not inside(afterwards, seen.spans)


@ways
def test_a_wait_that_fails_ends_there(on_ranks, env):
    on_ranks(2, failed, env=env)


def test_recordings_within_each_other():
    from numba_kernels import trace

    with trace.Recording() as outer:
        with trace.span("a"):
            pass
        inner = trace.Recording().start()
        with trace.span("b"), trace.span("c"):
            pass
        inner.stop()
        with trace.span("d"):
            pass
    assert [s[0] for s in outer.spans] == ["a", "b", "c", "d"]
    assert [s[0] for s in inner.spans] == ["b", "c"] and (outer.lost, inner.lost) == (0, 0)
    assert outer.begin <= inner.begin <= inner.spans[0][1] <= inner.end <= outer.end
    with pytest.raises(RuntimeError, match="has not started"):
        inner.stop()
    with pytest.raises(RuntimeError, match="has already started"), trace.Recording() as twice:
        twice.start()
    assert recording._log is None
    for wrong in (0, -1, 2.5, "many"):
        with pytest.raises(ValueError, match=r"limit must be a whole number, at least 1, got"):
            trace.Recording(wrong)


def test_other_threads_are_counted():
    from numba_kernels import trace

    def elsewhere():
        for _ in range(3):
            with trace.span("elsewhere"):
                pass

    with trace.Recording() as seen:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with trace.span("here"):
            pass
    assert [s[0] for s in seen.spans] == ["here"] and seen.others == 3


def test_a_thread_that_stands_in_has_the_spans_and_waits_of_the_one_that_waits_for_it():
    from numba_kernels import trace

    def wait():
        spans.began()
        spans.ended(spans.FLAG)

    def elsewhere():
        with spans.standing_in(), trace.span("sum"):
            wait()
        with trace.span("its own"):
            wait()

    def run():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    with trace.Recording() as seen:
        with trace.span("gradient"):
            run()
        wait()
    assert [s[0] for s in seen.spans] == ["gradient", "sum", "wait", "wait"] and seen.others == 1
    gradient, of_sum, waits, last = seen.spans
    assert inside(gradient, seen.spans) == [of_sum, waits] and inside(of_sum, seen.spans) == [waits]
    assert last[1] >= gradient[2], "the rank's own thread waits for itself again"
    run()  # nothing records
    assert not spans.substitutes


def test_times_are_those_of_the_clock():
    from numba_kernels import trace

    with trace.Recording() as seen:
        before = time.perf_counter_ns()
        for item in trace.each("item", (time.sleep(0.05) for _ in range(2))):
            assert item is None
        after = time.perf_counter_ns()
    assert seen.begin <= before <= seen.spans[0][1] and seen.spans[-1][2] <= after <= seen.end
    assert [s[0] for s in seen.spans] == ["item", "item"], "none for the end of the items"
    assert all(seconds(s) >= 0.05 for s in seen.spans)
    clock.note("a span is as long as its item", max(seconds(s) - 0.05 for s in seen.spans))
    # Compiled code reads the same clock.
    ring = np.zeros(spans.HEAD, np.int64)
    before = time.perf_counter_ns()
    assert before <= spans.now(ring.ctypes.data) <= time.perf_counter_ns()


def test_a_span_that_ends_after_its_outer_one_is_cut():
    from numba_kernels import trace

    spans = [("b", 5, 12), ("a", 0, 10), ("c", 6, 7), ("d", 10, 11), ("e", 0, 10)]
    assert trace.nested(spans) == [
        ("a", 0, 10), ("e", 0, 10), ("b", 5, 10), ("c", 6, 7), ("d", 10, 11),
    ]  # fmt: skip


def clocks(shift):
    """The clocks of ranks 2 and 3 are `shift` ns ahead, and the comparison finds it."""
    from numba_kernels import Team
    from numba_kernels.team.bytes import collect
    from numba_kernels.trace import clocks as trace_ranks

    team = Team()
    assert len(team.nodes) == (team.size + 1) // 2
    there = team.rank >= 2
    if there:
        trace_ranks.clock = lambda: time.perf_counter_ns() + shift
    now, ahead, error = trace_ranks.compare_clocks(team)
    assert abs(time.perf_counter_ns() + there * shift - now) < abs(shift) / 2
    assert (ahead, error) == (0, 0) or there
    assert abs(ahead - there * shift) <= error
    clock.note("clocks are compared to within", error / 1e9)
    found = collect(team, f"from {team.rank}".encode() * (1 + 1000 * team.rank))
    if team.rank:
        assert found is None
    else:
        assert found == [f"from {r}".encode() * (1 + 1000 * r) for r in range(team.size)]


@pytest.mark.thorough(but="4")
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_clocks_of_nodes(on_ranks, ranks):
    on_ranks(ranks, clocks, -7_000_000_123, env={"NUMBA_KERNELS_NODE": "2"})
