"""What a rank of a Keras model that is cut keeps and sends, as the formulas say, and its cost."""

from types import SimpleNamespace

import numpy as np
import pytest
from cut_models import gpt, mlp
from keras_networks import keras, layers, tf

from tutorial_dl import data, models, replica

pytestmark = pytest.mark.xdist_group("keras")


def held(model) -> int:
    """Numbers per sample that TensorFlow's graph keeps for the backward pass."""
    samples = 7  # which divides the size of no weights
    (x,) = model.inputs
    graph = tf.function(lambda x: model(x, training=True)).get_concrete_function(
        tf.TensorSpec((samples, *x.shape[1:]), x.dtype)
    )
    outputs = len(graph.outputs)
    forward, _ = graph._delayed_rewrite_functions.forward_backward()
    kept = {}
    for one in forward.graph.outputs[outputs:]:
        if one.op.type == "IdentityN" and one.value_index:
            continue  # what a custom gradient was given: for zeros that nobody uses
        while one.op.type in ("Reshape", "Identity", "IdentityN", "StopGradient"):
            one = one.op.inputs[0]  # the same memory
        kept[one.name] = one.shape.num_elements() if one.dtype.is_floating else 0
    return sum(size // samples for size in kept.values() if size % samples == 0)


def test_a_rank_keeps_what_the_formula_says():
    """A rank keeps the inputs of the two pairs of one more block, and 1 / T of all else."""
    from tutorial_dl.model_parallel.keras_tensor import Cut

    t, d = 12, 12
    text = data.text(length=t, characters=3000)

    def of_a_block(local) -> int:
        one, two = (models.gpt(text, width=d, heads=6, blocks=n) for n in (1, 2))
        return held(local(two)) - held(local(one))

    whole, inputs = of_a_block(lambda model: model), 2 * t * d
    ranks = 3
    team = SimpleNamespace(size=ranks, rank=ranks - 1)
    in_parts = of_a_block(lambda model: Cut(model, team, sequence=True).local)
    assert in_parts == inputs + (whole - inputs) / ranks


def test_seconds_are_of_inference():
    """Also of layers that are called with `training=True`, in the model or in one within it."""
    from tutorial_dl.model_parallel.keras_graph import Graph

    def trained(x):
        return layers.Dropout(0.5)(layers.BatchNormalization()(x, training=True), training=True)

    x = keras.Input((4,))
    model = keras.Model(x, keras.Model(x, trained(x))(layers.Dense(4)(trained(x))))
    before = [v.numpy() for v in model.variables]
    Graph(model).seconds(np.ones((8, 4)))
    for value, variable in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_proposals_know_what_it_keeps_and_sends():
    from tutorial_dl.model_parallel.keras_costs import Measured

    model, batch = gpt()
    measured = Measured(replica.of(model), batch, 2e-3, 1e-3, 1)
    plain, in_parts = (
        {one.name: one for one in measured.costs(2, sequence)} for sequence in (False, True)
    )
    assert {"block_1_attention_enter", "block_1_dense_1_enter"} <= plain.keys()
    assert in_parts.keys() >= {"block_1_attention_enter_from_part", "output_join"}
    assert plain["norm"].kept == 12 * 12 and in_parts["norm"].kept == 6 * 12
    assert in_parts["block_1_dense_1"].kept == plain["block_1_dense_1"].kept == 12 * 24
    each = 12 * 12
    for costs, sums, calls in ((plain, 4, 4), (in_parts, 4 + 2 / 2, 8 + 2)):
        assert sum(one.summed for one in costs.values()) == sums * each
        assert sum(one.sums for one in costs.values()) == calls


def test_costs_of_slices_and_a_proposal(capsys):
    """Weights and sums of one of two ranks, by hand; and the command, with what can't be cut."""
    from tutorial_dl.cli import layout_for
    from tutorial_dl.model_parallel.keras_costs import Measured

    model, batch = mlp(0.0)
    whole = replica.of(model)
    costs = Measured(whole, batch, 2e-3, 1e-3, 1).costs(2)
    weights = (36 * 6 + 6) + 6 * 8 + 8 + 2 * 8 + (8 * 3 + 3)
    assert sum(one.weights for one in costs) == weights
    assert sum(one.sums for one in costs) == 1 and sum(one.summed for one in costs) == 8
    by_name = {one.name: one for one in costs}
    uncut = {one.name: one for one in Measured(whole, batch, 2e-3, 1e-3, 1).costs(1)}
    assert by_name["one"].kept == uncut["one"].kept / 2 == 6
    assert sum(one.per_sample for one in uncut.values()) == pytest.approx(1e-3 / 12)
    measured = Measured(replica.of(gpt()[0]), gpt()[1], 2e-3, 1e-3, 1)
    assert [one.keys for one in measured.costs(2) if one.keys] == [12 * 12]  # half of the heads
    assert not Measured(whole, batch, 2e-3, 1e-3, 1).attends and measured.attends
    assert measured.no_context(2) is None and "12 positions" in measured.no_context(5)
    layout_for.main(
        model="mlp", ranks=6, data=None, batch_size=16, optimizer="adam", memory=0.01, json=None
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mlp: 301,066 weights; a gradient of 16 samples takes")
    assert any("data 2 x tensor 3" in one and "can't be divided evenly" in one for one in lines)
    assert sum("<- proposed" in one for one in lines) == 1
    assert lines[-2].startswith("proposed: ") and "within 10.2 MiB per rank" in lines[-2]
