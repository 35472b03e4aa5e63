"""Costs of cuts, on paper: against other formulas of the library, and against sums by hand."""

import doctest

import numpy as np
import pytest

from tutorial_dl.model_parallel import schedules, simulate
from tutorial_dl.replica.transformer import transformer_layers
from tutorial_dl.simulate import Cut, Job, Transformer, cost, gpus, possible, transformer

MODEL = Transformer(layers=8, width=64, heads=8, tokens=100)
JOB = Job(length=32, batch=16)
MACHINE = gpus(node=4, memory=1e9, flops=1e9, inside=1e6, between=1e5)


def test_weights_are_those_of_a_transformer_but_for_vectors():
    arrays = [a for layer in transformer_layers(100, 32, 64, 8, 8) for a in layer.arrays()]
    matrices = sum(np.prod(shape) for name, shape in arrays if len(shape) > 1)
    # Ours has a table of positions, and a second table for its outputs.
    assert abs(matrices / MODEL.weights - 1) < 0.04
    assert MODEL.weights == 8 * (4 + 8) * 64 * 64 + 100 * 64


def test_one_rank_holds_everything_and_sends_nothing():
    one = cost(Cut(), MODEL, Job(32, 1), MACHINE)
    assert sum(one.memory[kind] for kind in ("weights", "gradients", "state")) == pytest.approx(
        16 * MODEL.weights
    )
    assert one.memory["activations"] == 34 * 32 * 64 * 8
    beside = {kind: seconds for kind, seconds in one.seconds.items() if kind != "computing"}
    assert not any(beside.values())
    # 6 operations per weight and token, and 2 products of (32, 64) and (64, 32) per layer: forward
    # once, backward twice; half of the pairs, as no position looks ahead.
    operations = 6 * MODEL.weights * 32 + 8 * 3 * 2 * (2 * 32 * 64 * 32) / 2
    assert one.seconds["computing"] == pytest.approx(operations / 1e9)


def test_every_cut_computes_the_same_and_divides_all_memory():
    whole = cost(Cut(), MODEL, JOB, MACHINE)
    cuts = possible(8, MODEL, JOB)
    assert len(cuts) == len(set(cuts)) == 20  # of 2^3 into four factors: (3 + 3) choose 3
    for cut in cuts:
        found = cost(cut, MODEL, JOB, MACHINE)
        assert found.seconds["computing"] == pytest.approx(whole.seconds["computing"] / 8)
        assert found.memory["state"] == pytest.approx(whole.memory["state"] / 8)
        share = cut.pipeline * cut.tensor
        assert found.memory["weights"] == pytest.approx(whole.memory["weights"] / share)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_pipelines_hold_and_wait_as_their_schedule_says(stages):
    schedule = schedules.one_f_one_b(stages, 16)
    found = cost(Cut(pipeline=stages), MODEL, JOB, MACHINE)
    from tutorial_dl.model_parallel import held

    one = 34 * 32 * 64 * 8 / stages  # a stage's activations of a sequence
    assert found.memory["activations"] == pytest.approx(one * held(schedule)[0])
    work = sum(s for kind, s in found.seconds.items() if kind not in ("bubble", "data"))
    bubble = found.seconds["bubble"] / (work + found.seconds["bubble"])
    assert bubble == pytest.approx(simulate(schedule).bubble)


def sent(cut, axis, rate):
    return cost(cut, MODEL, JOB, MACHINE).seconds[axis] * rate


def test_bytes_of_each_axis():
    numbers = 32 * 64  # between two layers, of a sequence
    # Four allreduces per layer and sequence, of 2 bytes: a ring sends 2 (T - 1) / T of each.
    assert sent(Cut(tensor=4), "tensor", 1e6) == pytest.approx(4 * 8 * 16 * 1.5 * 2 * numbers)
    # Keys and values go round forward; backward they and their gradients, C - 1 steps each.
    assert sent(Cut(context=2), "context", 1e6) == pytest.approx(3 * 2 * 8 * 16 * 2 * (numbers / 2))
    # One message each way at an edge of a stage; a stage in the middle has two edges.
    assert sent(Cut(pipeline=2), "pipeline", 1e6) == pytest.approx(16 * 2 * numbers)
    assert sent(Cut(pipeline=4), "pipeline", 1e6) == pytest.approx(2 * 16 * 2 * numbers)
    # Reduce-scatter of gradients, allgather of weights, of 2 bytes.
    assert sent(Cut(data=8), "data", 1e5) == pytest.approx(2 * 7 / 8 * 2 * MODEL.weights)
    assert sent(Cut(context=2), "data", 1e6) == pytest.approx(2 * 1 / 2 * 2 * MODEL.weights)


@pytest.mark.parametrize(
    ("cut", "slow"),
    [
        (Cut(2, 1, 1, 4), {"data"}),
        (Cut(1, 2, 1, 4), {"pipeline"}),
        (Cut(1, 1, 2, 4), {"context", "data"}),  # ranks of a ring have the same weights
        (Cut(1, 1, 1, 8), {"tensor"}),
        (Cut(1, 2, 2, 1), set()),
        (Cut(2, 2, 2, 1), {"data"}),
    ],
)
def test_links_are_slow_where_a_group_leaves_its_node(cut, slow):
    found = cost(cut, MODEL, JOB, MACHINE).seconds
    alike = cost(cut, MODEL, JOB, gpus(4, 1e9, 1e9, 1e6, between=1e6)).seconds
    axes = ("data", "pipeline", "context", "tensor")
    assert {axis for axis in axes if found[axis] > 1.01 * alike[axis]} == slow
    for axis in slow:
        assert found[axis] == pytest.approx(10 * alike[axis])


def test_the_examples():
    assert doctest.testmod(transformer).failed == 0
