"""What cuts of a model cost, against numbers worked out by hand."""

import doctest

import pytest

from numba_kernels.allreduce.machine import straight
from tutorial_dl.simulate import cuts
from tutorial_dl.simulate.cuts import Cut, LayerCost, choice, propose, size

MACHINE = straight(1e-3, 1e-6, 0)  # 1 MB/s, 1 ms per message
# name, seconds per call and per sample, weights, outputs, summed, sums, elements of a cut before it
LAYERS = [
    LayerCost("a", 2e-3, 1e-3, 100, 10, crossing=4),
    LayerCost("b", 0, 3e-3, 300, 5, crossing=10),
]
SLICED = [
    LayerCost("a", 2e-3, 0.5e-3, 50, 5, crossing=4),
    LayerCost("b", 0, 1.5e-3, 150, 5, crossing=10),
    LayerCost("b_leave", 0, 0, 2, 5, summed=5, sums=1, crossing=5),
]
COSTS = {1: LAYERS, 2: SLICED}


def proposed(**options):
    found = propose(COSTS, 2, 8, MACHINE, **options)
    return {str(one.cut): one for one in found}, found


def test_two_ranks_by_hand():
    by_name, _ = proposed()
    assert list(by_name) == sorted(by_name, key=lambda name: by_name[name].step)
    data = by_name["data 2"]  # 4 samples per rank
    assert data.memory == {
        "weights": 1600, "gradients": 1600, "state": 2 * 1600 / 2, "activations": 4 * 15 * 4
    }  # fmt: skip
    assert data.sent == 2 * 0.5 * 400 * 4 and data.cut == Cut(data=2)
    assert data.seconds == pytest.approx(
        {"computing": 18e-3, "bubble": 0, "data": 3.6e-3, "tensor": 0, "pipeline": 0, "context": 0}
    )
    line = by_name["pipeline 2"]  # 4 micro-batches of 2; the second stage is the slower and larger
    assert line.memory == {"weights": 1200, "gradients": 1200, "state": 2400, "activations": 40}
    assert line.sent == 10 * 8 * 4
    assert line.seconds == pytest.approx(
        {
            "computing": 24e-3,
            "bubble": 6e-3,
            "data": 0,
            "tensor": 0,
            "pipeline": 320e-6 + 8e-3,
            "context": 0,
        }
    )
    cut = by_name["tensor 2"]
    assert cut.memory == {
        "weights": 808, "gradients": 808, "state": 1616, "activations": 8 * 15 * 4
    }  # fmt: skip
    assert cut.sent == 5 * 8 * 4 and cut.seconds["tensor"] == pytest.approx(160e-6 + 1e-3)
    assert cut.seconds["computing"] == pytest.approx(2e-3 + 8 * 2e-3)


def test_parts_of_sequences_by_hand():
    """C = 2 halves what a rank computes and keeps; both ranks reduce the whole gradient."""
    layers = [LAYERS[0], LAYERS[1]._replace(keys=6)]
    found = propose({1: layers, 2: SLICED}, 2, 8, MACHINE, no_context={2: None})
    one = next(one for one in found if str(one.cut) == "context 2")
    assert one.cut == Cut(context=2)
    assert one.memory == {
        "weights": 1600, "gradients": 1600, "state": 2 * 1600 / 2, "activations": 8 / 2 * 15 * 4
    }  # fmt: skip
    ring = 4 * 3 * 8 * 4  # forward once, backward three times, of 3 numbers of 8 samples
    assert one.sent == 1600 + ring
    assert one.seconds == pytest.approx(
        {"computing": 18e-3, "bubble": 0, "data": 3.6e-3, "tensor": 0, "pipeline": 0,
         "context": ring / 1e6 + 4e-3}
    )  # fmt: skip
    found = propose({1: layers, 2: SLICED, 4: SLICED}, 4, 8, MACHINE, no_context={2: None, 4: "no"})
    both = next(one for one in found if str(one.cut) == "pipeline 2 x context 2")
    assert both.memory == {"weights": 1200, "gradients": 1200, "state": 1200, "activations": 20}
    # 4 micro-batches of 2 samples; the second stage has the attention
    assert both.sent == 10 * 8 // 2 * 4 + 1200 + ring
    assert both.seconds == pytest.approx(
        {"computing": 12e-3, "bubble": 3e-3, "data": 1.2e-3 + 2e-3, "tensor": 0,
         "pipeline": 160e-6 + 8e-3, "context": ring / 1e6 + 4 * 4e-3}
    )  # fmt: skip
    refused = {str(one.cut): one.refused for one in found if one.refused}
    assert refused["context 4"] == "no" and "data 2 x context 2" not in refused


def test_the_choice_and_its_reason():
    _, found = proposed()
    best, why = choice(found)
    assert str(found[best].cut) == "tensor 2"
    assert why == "tensor 2 is predicted to be the fastest (19.2 ms per step, 3.62 KiB per rank)"
    slow = [LayerCost("a", 0, 9e-3, 100, 10), *SLICED[1:]]
    other = propose({1: LAYERS, 2: slow}, 2, 8, MACHINE)
    best, why = choice(other, 5000)
    assert str(other[best].cut) == "pipeline 2" and str(other[0].cut) == "data 2"
    assert "within 4.88 KiB per rank" in why and "data 2 is faster (21.6 ms) but needs" in why
    none, why = choice(found, 800)
    assert none is None and why == (
        "no cut fits 800 B per rank: tensor 2 needs the least, 3.62 KiB; use more ranks"
    )


def test_what_cannot_be_is_last_with_its_reason():
    found = propose({1: LAYERS, 2: "layer 'a' has 3 units", 4: "no"}, 4, 8, MACHINE)
    refused = {str(one.cut): one.refused for one in found if one.refused}
    assert refused == {
        "tensor 4": "no", "data 2 x tensor 2": "layer 'a' has 3 units",
        "pipeline 2 x tensor 2": "layer 'a' has 3 units",
        "pipeline 4": "4 stages need as many layers with weights, the model has 2: use at most 2 "
        "stages",
    }  # fmt: skip
    assert [one.refused for one in found[:2]] == [None, None]
    found = propose({1: LAYERS, 2: SLICED}, 2, 1, MACHINE, no_pipeline="it has dropout")
    refused = {str(one.cut): one.refused for one in found if one.refused}
    assert refused == {"pipeline 2": "it has dropout", "data 2": "2 copies for 1 samples"}


def test_sizes_in_words():
    assert [size(n) for n in (5, 2048, 3.5 * 2**20, 2**33)] == ["5 B", "2 KiB", "3.5 MiB", "8 GiB"]


def test_the_examples():
    assert doctest.testmod(cuts).failed == 0


def test_the_bubble_of_messages():
    """With `all_waits`, an idle stage is idle for its messages, too: two stages, four batches."""
    found = cuts.cost_of(Cut(pipeline=2), LAYERS, 8, MACHINE, micro_batches=4, all_waits=True)
    assert found.seconds["bubble"] == pytest.approx((24e-3 + 320e-6 + 8e-3) / 4)
