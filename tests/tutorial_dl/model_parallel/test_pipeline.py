"""Pipelines on ranks compute what one process with the whole model computes."""

import doctest
import gc
import os
import re
import signal
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from on_ranks import one_call

from numba_kernels import launch, optimizers
from numba_kernels.errors import PeerError
from numba_kernels.step.step import Step
from numba_kernels.team import stall
from numba_kernels.team.team import Team
from tutorial_dl.model_parallel import held, pipelined, schedules, stages
from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.pipelined import PipelinedReplica, parts_of
from tutorial_dl.replica import CurveReplica, LayeredReplica, TransformerReplica
from tutorial_dl.replica.layered import cnn_layers, mlp_layers
from tutorial_dl.simulate.cuts import balanced

RANDOM = np.random.default_rng(7)
X, IMAGES = RANDOM.standard_normal((23, 5)), RANDOM.standard_normal((23, 5, 4, 2))
LABELS, VALUES = RANDOM.integers(0, 4, 23), RANDOM.standard_normal((23, 4))
TOKENS, NEXT = RANDOM.integers(0, 7, (2, 23, 6))
BATCHES = {"mlp": (X, VALUES), "cnn": (IMAGES, LABELS), "transformer": (TOKENS, NEXT)}
# (Adam would turn the noise of gradients that are 0, those of attention's key biases, into steps.)
SGD = optimizers.SGD(learning_rate=0.1, momentum=0.9)
NEAR = {"float32": 1e-5, "float64": 1e-12}


def whole(name, dtype, dropout=0.0):
    if name == "mlp":
        return LayeredReplica(mlp_layers((5, 9, 8, 7, 6, 6, 6, 6, 4), "tanh"), "mse", 1, dtype)
    if name == "cnn":
        return LayeredReplica(cnn_layers((5, 4, 2), (3, 4, 4, 3, 2, 3, 2), 4), seed=1, dtype=dtype)
    return TransformerReplica(7, 6, 8, heads=2, blocks=4, dropout=dropout, seed=1, dtype=dtype)


def part(batch, step):
    """Batches of 10 to 14 samples, so that micro-batches differ in size."""
    return tuple(a[step % 9 : step % 9 + 10 + step % 5] for a in batch)


@cache
def serial(name, dtype, steps, dropout=0.0):
    """(Losses, first gradient, parameters after the last step) of one process, whole model."""
    replica, batch, losses, gradients = whole(name, dtype, dropout), BATCHES[name], [], []
    state = SGD.init(replica.parameters.size, dtype)
    for step in range(steps):
        losses.append(replica.compute_gradient(part(batch, step))[0])
        gradients.append(replica.gradient.copy())
        SGD.update(replica.parameters, replica.gradient, state)
    return np.array(losses), gradients[0], replica.parameters, replica.evaluate([batch])


def close(found, expected, dtype):
    size = max(float(np.abs(expected).max()), 1e-3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=NEAR[dtype] * size)


def trains_as_one(name, dtype, schedule, micro_batches, chunks, recompute, dropout, steps):
    grid = Grid(Team(), Team().size)
    model = whole(name, dtype, dropout)
    replica = PipelinedReplica(
        model, grid, schedule, micro_batches, chunks, sample=BATCHES[name][0][:4],
        recompute=recompute,
    )  # fmt: skip
    losses, gradient, parameters, metrics = serial(name, dtype, steps, dropout)
    state = SGD.init(replica.parameters.size, dtype)
    found = []
    mine = np.concatenate([np.arange(low, high) for low, high in replica.slices])
    for step in range(steps):
        loss, samples = replica.compute_gradient(part(BATCHES[name], step))
        assert samples == 10 + step % 5
        found.append(loss)
        if step == 0:
            close(replica.gradient, gradient[mine], dtype)
        SGD.update(replica.parameters, replica.gradient, state)
    close(found, losses, dtype)
    close(replica.parameters, parameters[mine], dtype)
    assert replica.evaluate([BATCHES[name]]) == pytest.approx(metrics, rel=10 * NEAR[dtype])
    rank = grid.pipe.rank
    assert replica.pipeline.held == min(held(replica.schedule)[rank], 14 * chunks)
    table = replica.pipeline.timetable()
    computed = sum(len(replica.schedule.computed(rank)) for rank in range(grid.pipe.size))
    assert len([s for s in table.spans if not s.action.message]) >= computed * min(
        1, samples / replica.schedule.batches
    )


@pytest.mark.thorough(but="2")
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_schedule_trains_as_one_process(on_ranks, ranks):
    on_ranks(ranks, every_schedule)


def every_schedule():
    size = Team().size
    for name, dtype in (("mlp", "float64"), ("cnn", "float32"), ("transformer", "float64")):
        for schedule in schedules.SCHEDULES:
            batches, chunks = (2 * size, 2) if schedule == "interleaved" else (5, 1)
            trains_as_one(name, dtype, schedule, batches, chunks, False, 0.0, 20)
    trains_as_one("transformer", "float32", "1f1b", 4, 1, True, 0.3, 20)
    trains_as_one("mlp", "float64", "zb_h1", 16, 1, True, 0.0, 20)  # more than samples


def test_a_rank_of_another_copy_is_named_with_its_stage(on_ranks):
    on_ranks(4, one_of_two_by_two_fails)


def one_of_two_by_two_fails():
    """D x S = 2 x 2, and rank 3 raises: each of the others learns that it, with stage 1, did."""
    grid = Grid(Team(), 2)
    replica = PipelinedReplica(
        whole("mlp", "float64"), grid, "1f1b", 3, sample=X[:2], layers=["layer_5"]
    )
    step_of = Step(grid.copies, SGD, replica.parameters, replica.gradient, replica.segments)
    stage = replica.pipeline.stages[0]
    if grid.team.rank == 3:

        def fails(*arguments):
            raise ArithmeticError("no more")

        proper, stage.backward_weights = stage.backward_weights, fails
    error = ArithmeticError if grid.team.rank == 3 else PeerError
    with pytest.raises(error) as told:
        for _ in range(3):
            step_of(*replica.compute_gradient(part(BATCHES["mlp"], 0)))
    line = str(told.value)
    if grid.team.rank == 3:
        stage.backward_weights = proper
    else:
        assert "(stage 1" in line and "ArithmeticError: no more" in line and "\n" not in line
        assert "rank 3" in line
    grid.team.recover()
    replica.holding.recover()
    step_of.resume()
    step_of(*replica.compute_gradient(part(BATCHES["mlp"], 0)))


@pytest.mark.thorough
def test_a_stopped_and_killed_rank_is_named_with_its_stage():
    """Rank 1 of 3 is stopped, which is reported, and then killed: the others end with a line."""
    call = one_call(3, __file__, "one_is_stopped_and_killed", [])
    done = launch.run_ranks(3, call, timeout=600, capture=True, survive=True)
    layers = r"stage 1: layer_\d, activation_\d"
    for rank in (0, 2):
        # A rank sees that itself, or hears it first from another one that has
        said = rf"rank {rank}: (rank \d \(.*\) failed: )?rank 1 \({layers}.*\) failed: its process"
        assert len(re.findall(said, done.stdout)) == 1, done.stdout + done.stderr
    assert re.search(rf"1 \({layers}.*, process \d+ is stopped by a signal\)", done.stdout)


def one_is_stopped_and_killed():
    grid, name = Grid(Team(), 3), "mlp"
    replica = PipelinedReplica(
        whole(name, "float64"), grid, "1f1b", 4, sample=X[:2], layers=["layer_3", "layer_5"]
    )
    launch.can_be_lost()
    replica.compute_gradient(part(BATCHES[name], 0))
    first = grid.pipe.processes.get(1)
    if grid.team.rank == 1:
        here = os.getpid()
        replica.pipeline.stages[0].backward_weights = lambda *_: os.kill(here, signal.SIGSTOP)

    def say(line):
        print(line, flush=True)
        if "is stopped by a signal" in line:
            os.kill(first, signal.SIGKILL)

    stall.REPORT, stall._say = 0.2, say
    with pytest.raises(PeerError) as told:
        for _ in range(3):
            replica.compute_gradient(part(BATCHES[name], 0))
    print(f"rank {grid.team.rank}: {told.value}", flush=True)
    os._exit(0)  # MPI_Finalize would wait for rank 1


@pytest.mark.thorough
def test_a_rank_that_has_left_is_named(on_ranks):
    on_ranks(2, one_leaves, fresh=True)


def one_leaves():
    """Rank 1 ends its program after two steps; rank 0, in its third one, does not wait for ever."""
    grid = Grid(Team(), 2)
    replica = PipelinedReplica(whole("mlp", "float64"), grid, sample=X[:2])
    for _ in range(2):
        replica.compute_gradient(part(BATCHES["mlp"], 0))
    if grid.team.rank == 0:
        with pytest.raises(PeerError, match="rank 1"):
            replica.compute_gradient(part(BATCHES["mlp"], 0))


def test_own_schedules_run(on_ranks):
    on_ranks(2, own_schedule)


def own_schedule():
    """A list by hand, with gradients sent before W, in another order of micro-batches."""
    own = schedules.of(
        [
            "F1 send F1 F0 send F0 recv B0 recv B1 B1 B0 W1 W0",
            "recv F0 recv F1 F1 F0 B0 send B0 W0 B1 send B1 W1",
        ]
    )
    grid, batch = Grid(Team(), 2), part(BATCHES["mlp"], 0)
    replica = PipelinedReplica(whole("mlp", "float64"), grid, own, sample=X[:2])
    losses, gradient, _, _ = serial("mlp", "float64", 1)
    assert replica.compute_gradient(batch)[0] == pytest.approx(losses[0], rel=1e-12)
    close(replica.gradient, gradient[slice(*replica.slices[0])], "float64")
    outputs = whole("mlp", "float64").predict(batch[0])
    np.testing.assert_allclose(replica.predict(batch[0]), outputs, rtol=1e-12)
    roles = grid.team.roles
    assert [roles[rank].partition(":")[0] for rank in range(2)] == ["stage 0", "stage 1"]
    del replica
    gc.collect()
    assert not roles, "the team may go on to other work"


def test_a_model_on_one_rank_is_a_pipeline_too():
    losses, gradient, _, _ = serial("cnn", "float64", 1)
    for name, chunks in (("zb_h1", 1), ("interleaved", 3)):
        replica = PipelinedReplica(
            whole("cnn", "float64"), Grid(Team(), 1), name, 4, chunks, sample=IMAGES[:2]
        )
        assert replica.compute_gradient(part(BATCHES["cnn"], 0))[0] == pytest.approx(losses[0])
        close(replica.gradient, gradient, "float64")


# Where a model is cut


class Costly(stages.Parts):
    """Layers a, b, ...; those whose place is in `empty` have no weights."""

    def __init__(self, n, empty=()):
        self.names = [chr(97 + i) for i in range(n)]
        self.ends = np.cumsum([0, *(0 if i in empty else 10 for i in range(n))])

    def weights_before(self, layer):
        return int(self.ends[layer])


@given(some.lists(some.integers(1, 50), min_size=1, max_size=9), some.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_the_cut_has_the_fastest_slowest_stage(costs, count):
    n = len(costs)
    if count > n:
        with pytest.raises(ValueError, match=f"the model has {n}: use at most {n} stages"):
            balanced([10] * n, costs, count)
        return
    places = balanced([10] * n, costs, count)
    ways = ([0, *inner, n] for inner in combinations(range(1, n), count - 1))
    best = min(max(sum(costs[a:b]) for a, b in pairwise(way)) for way in ways)
    assert len(places) == count + 1 and places[0] == 0 and places[-1] == n
    assert max(sum(costs[a:b]) for a, b in pairwise(places)) == best


def test_every_stage_has_weights():
    parts = Costly(6, empty=(0, 3))
    assert doctest.testmod(stages).failed == doctest.testmod(pipelined).failed == 0
    assert balanced([0, 10, 10, 0, 10, 10], [9, 1, 1, 1, 1, 1], 4) == [0, 2, 4, 5, 6]
    assert stages.cut_at(parts, 2, ["c"]) == [0, 2, 6]
    for names, line in {
        ("c",): "3 stages need 2 layers at which to cut, got 1",
        ("c", "z"): "the model has no layer 'z': a, b, c, d, e, f",
        ("d", "b"): "layer 'b' must come after layer 'd', at which stage 1 begins",
        ("d", "e"): r"stage 1 \(d\) has no weights: cut elsewhere",
        ("b", "c"): r"stage 0 \(a\) has no weights: cut elsewhere",
    }.items():
        with pytest.raises(ValueError, match=line):
            stages.cut_at(parts, 3, names)
    with pytest.raises(ValueError, match="5 stages need as many layers with weights, the model"):
        balanced([0, 10, 10, 0, 10, 10], [1] * 6, 5)


def test_what_cannot_be_a_pipeline_is_refused():
    grid = Grid(Team(), 1)
    with pytest.raises(ValueError, match="a CurveReplica can't be cut into stages: a pipeline tak"):
        parts_of(CurveReplica())
    with pytest.raises(ValueError, match="1 ranks can't be divided into pipelines of 2: use a mul"):
        Grid(Team(), 2)
    with pytest.raises(ValueError, match="schedule 'gpipe' is for 2 ranks, the pipeline has 1"):
        PipelinedReplica(whole("mlp", "float32"), grid, schedules.gpipe(2, 2), sample=X[:2])
    replica = PipelinedReplica(whole("mlp", "float32"), grid, sample=X[:2])
    with pytest.raises(ValueError, match="a pipeline takes no weights of samples yet"):
        replica.compute_gradient((X, VALUES, X[:, 0]))


def test_a_wait_ends_late_by_a_two_hundredth_at_most(monkeypatch):
    """Each poll here takes 1 ms of a clock of its own; a message arrives after 100 ms."""
    from types import SimpleNamespace

    from tutorial_dl.model_parallel import pipeline

    now, waits, slept = [0.0], [], []

    class Request:
        def Test(self):
            now[0] += 1e-3
            return now[0] > 0.1

    class Pipe:
        doing = ""

        def ready(self):
            pass

        def wait_until(self, finished, sleep):
            while not finished():
                waits.append(now[0])
                sleep(1.0)

    monkeypatch.setattr(pipeline, "perf_counter", lambda: now[0])
    monkeypatch.setattr(pipeline, "sleep", slept.append)
    step = object.__new__(pipeline.Step)
    step.of = SimpleNamespace(grid=SimpleNamespace(pipe=Pipe()))
    step._wait([Request()], None)
    assert waits[0] > pipeline.SPIN and len(slept) == len(waits) > 90
    for waited, seconds in zip(waits, slept, strict=True):
        assert seconds == pytest.approx(waited / 200)
