"""Spans that a Trainer records: waits, sums, bounded memory; and recording by hand."""

import json
import subprocess
import sys
import time
from collections import Counter
from timeit import repeat

import clock
import numpy as np
import pytest
from counted_runs import some_digits
from faults import Around
from mpi4py import MPI
from rank_tests import with_ranks
from trace_format import check_format

from numba_kernels import PeerError, trace
from numba_kernels import spans as announced
from numba_kernels.jit.compile import compiled
from numba_kernels.spans import began, ended
from tutorial_dl import Team, Trainer, data, models, strategies, timeline
from tutorial_dl.training.span_kinds import KINDS

SLEEP = 0.4  # seconds
# Errors of durations are noted here, and asserted in `make soak`.
WAITS, OFF = "who waits for a straggler, off by", "who waits for nobody"
MESSAGES = {"NUMBA_KERNELS_WINDOW": "0"}
NODES = {"NUMBA_KERNELS_NODE": "2"}


# A Trainer's -----------------------------------------------------------------------------------


class Slow(Around):
    """A replica whose gradient takes `seconds(step)` longer."""

    def compute_gradient(self, batch):
        time.sleep(self.seconds(self.step))
        self.step += 1
        return self._replica.compute_gradient(batch)


def a_trainer(seen, seconds=lambda step: 0, algorithm="fused"):
    """A Trainer with 10 steps per epoch."""
    some, team = some_digits(100, 100), Team()
    strategy = "serial" if team.size == 1 else strategies.Synchronous(team, algorithm)
    model = Slow(models.softmax(some, seed=team.rank), seconds=seconds, step=0)
    return Trainer(model, some, strategy, batch_size=10, progress=False, timeline=seen)


def of_rank(whole, rank):
    return [tuple(s) for s in whole.ranks[rank]["spans"]]


def named(name, spans):
    return [s for s in spans if s[0] == name]


def inside(outer, spans):
    return [s for s in spans if outer[1] <= s[1] and s[2] <= outer[2] and s != outer]


def straggler(late, when, algorithm):
    """One rank sleeps in step `when`; the timeline shows that the others wait in that step."""
    rank, ranks = Team().rank, Team().size
    seen = timeline.Timeline()
    trainer = a_trainer(seen, lambda step: SLEEP * (rank == late and step == when), algorithm)
    trainer.fit(1)
    trainer.evaluate()
    if rank:
        assert [each["rank"] for each in seen.ranks] == [rank]
        return
    assert [each["rank"] for each in seen.ranks] == [*range(ranks)]
    check_format(seen.chrome())
    for each in range(ranks):
        spans = of_rank(seen, each)
        assert len(named("data", spans)) == len(named("gradient", spans)) == 10
        assert len(named("validation", spans)) == 1, "the second one was not in `fit`"
        kinds = {"fused": {"reduce + update"}, "auto": {"reduce", "update"}}
        there = {s[0] for s in spans} & {"reduce", "update", "hand out", "reduce + update"}
        assert there == kinds[algorithm]
        reduce = [s for s in spans if s[0] in ("reduce", "reduce + update")]
        waits = [
            sum((e - b) / 1e9 for name, b, e in inside(s, spans) if name.startswith("wait"))
            for s in reduce
        ]
        gradient = (named("gradient", spans)[when][2] - named("gradient", spans)[when][1]) / 1e9
        assert len(waits) == 10
        if each == late:
            assert gradient >= SLEEP
            clock.note(OFF, max(gradient - SLEEP, waits[when]))
        else:
            clock.note(OFF, gradient)
            clock.note(WAITS, abs(waits[when] - SLEEP))
            # On a common clock, the others begin to wait before the late rank comes, and end later.
            came = named("gradient", seen.rows[late].spans)[when][2]
            of_step = [s for s in seen.rows[each].spans if s[0].startswith("reduce")][when]
            assert came < of_step[2] and (waits[when] > 0 or of_step[1] > came)
            clock.note("who begins to wait after the straggler is there", of_step[1] > came)
    shares = seen.shares()
    assert [s["rank"] for s in shares] == [*range(ranks)]
    assert all(sum(s[k] for k in KINDS) == pytest.approx(1) for s in shares)


@pytest.mark.parametrize(
    ("ranks", "algorithm", "env"),
    [(2, "fused", None), (3, "auto", None), (3, "fused", NODES), (4, "fused", None)],
)
def test_a_straggler(on_ranks, ranks, algorithm, env):
    on_ranks(ranks, straggler, ranks - 1, 4, algorithm, env=env)


def sums():
    """Top-level spans fill the time of training, and recording changes no result."""
    seen, other = timeline.Timeline(), None
    trainer = a_trainer(seen, lambda step: 0.02)
    trainer.fit(3)
    plain = a_trainer(None)
    plain.fit(3)
    np.testing.assert_array_equal(trainer.replica.parameters, plain.replica.parameters)
    assert trainer.history.column("loss") == plain.history.column("loss")
    if trainer.team.rank:
        return
    for other in range(trainer.team.size):
        spans = of_rank(seen, other)
        firsts = named("data", spans)[::10]
        lasts = [s for s in spans if s[0] in ("update", "reduce + update")][9::10]
        assert len(firsts) == len(lasts) == 3
        for epoch, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
            took = last[2] - first[1]
            names = ("data", "gradient", "reduce + update", "update")
            of_epoch = [s for s in spans if first[1] <= s[1] and s[2] <= last[2]]
            covered = sum(e - b for name, b, e in of_epoch if name in names)
            # A part of the first step is not training: it compares the weights of all ranks.
            assert covered <= took
            first_of_all = "the first epoch is" if epoch == 0 else "an epoch is"
            clock.note(f"{first_of_all} not covered by", 1 - covered / took)
            seconds = trainer.history.column("seconds")[epoch]
            clock.note("spans and seconds of an epoch differ by", abs(took / 1e9 / seconds - 1))


@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_of_spans(on_ranks, ranks):
    on_ranks(ranks, sums)


def overhead():
    """Note the cost of recording one step of the network for digits.

    On a busy machine, two runs with and without recording differ by more than that cost. So the
    spans of a step are counted by kind, and the cost of each kind is measured separately, between
    runs. The minimum of several measurements excludes moments when other programs had the cores.
    """
    digits, alone = data.digits(), Team(MPI.COMM_SELF)
    batch_size = 32 * MPI.COMM_WORLD.size
    seen = timeline.Timeline()
    trainer = Trainer(
        models.dense(digits), digits, progress=False, timeline=seen, batch_size=batch_size
    )

    def spans():
        for _ in range(1000):
            with trace.span("x"):
                pass

    def items():
        for _ in trace.each("x", range(1000)):
            pass

    def calls():
        for _ in range(1000):
            alone.barrier()

    def seconds(what):
        return min(repeat(what, number=1, repeat=10)) / 1000

    waits = compiled_wait()
    costs = []
    for _ in range(6):
        trainer.fit(1)
        off = seconds(calls)
        with trace.Recording():
            costs.append([seconds(items), seconds(spans), seconds(calls) - off, seconds(waits)])
    of_item, of_span, of_call, of_wait = np.min(costs, axis=0)
    found = seen.ranks[0]["spans"]
    starts = [b for name, b, _ in found if name == "data"]
    first, last = starts[len(starts) // 3], starts[-1]  # in the first third, code is compiled
    step = np.median(np.diff(starts)[len(starts) // 3 :]) / 1e9
    steps = len(starts) - len(starts) // 3 - 1
    count = Counter(name for name, b, _ in found if first <= b < last)
    number = [count.pop("data"), count.pop("gradient")]
    in_kernels = sum(count.pop(name, 0) for name in announced.WAITS)
    number += [count.total(), in_kernels]  # the rest: calls of a Step, and a few per epoch
    assert 3 <= sum(number) / steps < 8
    cost = np.dot(number, [of_item, of_span, of_call, of_wait]) / steps
    clock.note("recording costs of a step", 100 * cost / step)


def compiled_wait():
    """A function that records 1000 waits of compiled code."""

    @compiled(cache=False)
    def waits():
        for _ in range(1000):
            began()
            ended(0)

    waits()
    return waits


@pytest.mark.thorough(but="2")
@pytest.mark.parametrize("ranks", [1, 2])
def test_overhead(on_ranks, ranks):
    on_ranks(ranks, overhead)


@with_ranks(2)
def test_memory_is_bounded():
    seen = timeline.Timeline(limit=20)
    trainer = a_trainer(seen)
    trainer.fit(5)
    if trainer.team.rank == 0:
        assert len(seen.notes()) == trainer.team.size
        for rank in seen.ranks:
            assert len(rank["spans"]) <= 40 and rank["lost"] > 100
            assert named("validation", rank["spans"])[-1][2] > 0, "the last ones are kept"
        check_format(seen.chrome())


def fails():
    """If a rank fails in `fit`, its error is unchanged, and every rank has its own spans."""
    rank = Team().rank
    seen = timeline.Timeline()

    def seconds(step):
        if (rank, step) == (1, 3):
            raise KeyError("broken")
        return 0

    with pytest.raises(KeyError if rank == 1 else PeerError):
        a_trainer(seen, seconds).fit(1)
    assert [each["rank"] for each in seen.ranks] == [rank]
    assert len(named("gradient", of_rank(seen, 0))) == 4
    assert announced.sink is None
    check_format(seen.chrome())


def test_a_fit_that_fails(on_ranks):
    on_ranks(2, fails)


# By hand ---------------------------------------------------------------------------------------


def by_hand():
    team = Team()
    with timeline.record() as recording:
        with timeline.span("load"):
            time.sleep(0.05)
        for _ in timeline.each("next", range(2)):
            team.allreduce(np.ones(3))
    taken = json.loads(json.dumps(recording.taken))
    assert taken["rank"] == team.rank
    assert [s[0] for s in taken["spans"] if s[0] != "wait"] == [
        "load", "next", "allreduce", "next", "allreduce",
    ]  # fmt: skip
    print(json.dumps(taken), flush=True)


ON_THE_CLIENT = """
import json, sys
from tutorial_dl import timeline
whole = timeline.gather([json.loads(line) for line in sys.stdin if line.startswith("{")])
whole.save(sys.argv[1] + "/cell.json"), whole.save(sys.argv[1] + "/cell.PNG")
assert "image/png" in whole._repr_mimebundle_() and repr(whole).startswith("Timeline(3 ranks, ")
with timeline.record() as alone, timeline.span("mine"):
    pass
assert alone.taken["rank"] == 0 and [s[0] for s in alone.taken["spans"]] == ["mine"]
heavy = {"mpi4py.MPI", "tensorflow", "keras", "matplotlib.pyplot"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.thorough
def test_by_hand_and_gathered_without_mpi(on_ranks, tmp_path):
    printed = on_ranks(3, by_hand)
    subprocess.run(
        [sys.executable, "-c", ON_THE_CLIENT, str(tmp_path)], input=printed, text=True, check=True
    )
    rows = check_format(json.loads((tmp_path / "cell.json").read_text()))
    assert set(rows) == {(0, 0), (0, 1), (0, 2)}
    assert (tmp_path / "cell.PNG").read_bytes().startswith(b"\x89PNG")
