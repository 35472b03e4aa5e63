"""The sequence-parallel form for Keras models: equal to one process, bytes as the formulas say."""

from pathlib import Path
from types import SimpleNamespace

import divided_models
import numpy as np
import pytest
from divided_models import (
    Fails,
    fails_and_recovers,
    in_float64,
    same_file,
    same_training,
    same_vectors,
)
from keras_networks import keras, layers, tf

from numba_kernels import optimizers
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, model_parallel, models
from tutorial_dl.config import RunConfig
from tutorial_dl.model_parallel import Grid, PipelinedReplica
from tutorial_dl.training.setup import prepare

pytestmark = pytest.mark.xdist_group("keras")

TEXT = data.text(length=11, characters=3000)  # neither 2 nor 3 ranks divide 11 positions
RANDOM = np.random.default_rng(3)
NUMBERS, LABELS = RANDOM.standard_normal((13, 12, 3)).astype("f4"), RANDOM.integers(0, 4, 13)
WAVES = np.sin(np.arange(12)[None, :, None] * np.linspace(0.1, 4, 12)).astype("f4")


def gpt():
    """Causal attention."""
    return models.gpt(TEXT, seed=1, width=12, heads=6, blocks=1), TEXT.train.take(slice(0, 13))


def start(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def full(dropout=0.3):
    """Full attention; dropout between the pairs and within one; pooling over positions.

    A convolution mixes positions, and a norm has a regulariser: both get whole sequences.
    """
    inputs = keras.Input((12, 3))
    x = layers.Dense(12, kernel_initializer=start(1), name="first")(inputs) + WAVES
    x = layers.Dropout(dropout, seed=3, name="drop_1")(x)
    y = layers.LayerNormalization(name="norm_1")(x)
    heads = layers.MultiHeadAttention(6, 2, kernel_initializer=start(4), name="attend")
    x = layers.Add(name="add")([x, layers.SpatialDropout1D(dropout, seed=5)(heads(y, y))])
    y = layers.Conv1D(12, 3, padding="same", kernel_initializer=start(6), name="conv")(x)
    x += layers.Dense(12, kernel_initializer=start(7), name="behind")(y)
    y = layers.LayerNormalization(gamma_regularizer="l2", name="norm_2")(x)
    y = layers.Dense(24, "gelu", kernel_initializer=start(8), name="pair_1")(y)
    y = layers.Dropout(dropout, seed=9, name="inside")(y)
    x += layers.Dense(12, "tanh", kernel_initializer=start(10), name="pair_2")(y)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(name="norm_3")(x))
    x = layers.Dense(4, "softmax", kernel_initializer=start(11), name="last")(x)
    model = keras.Model(inputs, x, name="full")
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, (NUMBERS, LABELS)


RULES = {gpt: None, full: {"attend": "heads", "pair_1": "columns", "pair_2": "rows"}}
# A gradient takes so many allgathers: one in front of and one behind each of two pairs, one for
# Divide and one for Join. `full` also divides and joins around the convolution, and joins for the
# norm that computes whole sequences.
GATHERS = {gpt: 4 + 2, full: 3 + 2 + 3}
# Each sum sends as much as an allgather; but behind that norm there is an allreduce, twice as much.
SUMS = {gpt: 4, full: 4 + 1}
# Numbers of weights that see parts: two norms and two biases, and the last norm; one norm less
SEE_PARTS = {gpt: 8 * 12, full: 6 * 12}


def trainers(build, grid, *optimizer, **options):
    """Of divided_models.py, in the sequence-parallel form; by default eager, without validation."""

    def part(model):
        return model_parallel.KerasTensorReplica(model, grid, RULES[build], sequence=True)

    options = {"validate": False, "eager": True} | options
    strategy = "synchronous"
    return divided_models.trainers(build, part, strategy, *optimizer, **options)


def trains(build, grid, folder, near, **options):
    """Gradients, and 20 updates of 7 and 6 samples; the file is a plain .keras file."""
    serial, found, batch = trainers(build, grid, **options)
    if serial is not None:
        serial.fit(10)
    found.fit(10)
    same_training(found, serial, batch, near)
    if build is full:
        path = Path(folder, "full.keras")
        found.save(path)
        if serial is not None:
            assert int(same_file(path, serial, batch, near).optimizer.iterations) == 20
    replica, ranks = found.replica, grid.tensor.size
    sums = replica.sums
    before = sums.forward, sums.backward, sums.gathers, sums.sent
    loss, _ = replica.compute_gradient(batch)
    whole = replica.holding.joined(replica.gradient, 0, replica.holding.size)
    if serial is not None:
        assert serial.replica.compute_gradient(batch)[0] == pytest.approx(loss, rel=10 * near)
        expected = serial.replica.gradient
        np.testing.assert_allclose(whole, expected, rtol=0, atol=near * np.abs(expected).max())
    after = sums.forward, sums.backward, sums.gathers, sums.sent
    *counts, sent = np.subtract(after, before)
    assert counts == [2, 2, GATHERS[build]]
    each = np.prod(batch[0].shape[:2]) * 12  # numbers between two pairs
    numbers = (SUMS[build] + GATHERS[build]) * each + 2 * SEE_PARTS[build]
    expected = (ranks - 1) / ranks * numbers * replica.dtype.itemsize
    assert sent == pytest.approx(expected, rel=1e-12)
    return found


@pytest.mark.thorough
def test_two_ranks_train_and_fail_as_one(on_ranks, tmp_path):
    on_ranks(2, two, str(tmp_path), keras=True)


def two(folder):
    grid, fails = Grid(Team(), tensor=2), Fails()
    trains(gpt, grid, folder, 1e-5, eager=False)
    found = trains(full, grid, folder, 1e-5, callbacks=[fails])
    fails.armed = found.team.rank == 1
    fails_and_recovers(found, 3)
    found.fit(1)  # masks agree again, too
    assert found.history.epochs[-1]["loss"] < found.history.epochs[0]["loss"]
    config = RunConfig.of(model="mlp", tensor=2, sequence_parallel=True, quiet=True)
    with pytest.raises(ValueError, match="model 'mlp' has nothing between layers that are cut"):
        prepare(config, found.team)
    with pytest.raises(ValueError, match="leave it out, or use a grid without context"):
        model_parallel.KerasTensorReplica(gpt()[0], Grid(Team(), context=2), sequence=True)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        half = gpt()[0]
    finally:
        keras.config.set_dtype_policy(before)
    with pytest.raises(ValueError, match=r"computes in bfloat16, .* sequence-parallel form"):
        model_parallel.KerasTensorReplica(half, grid, sequence=True)


@pytest.mark.thorough
def test_three_ranks_train_as_one_to_twelve_digits(on_ranks, tmp_path):
    on_ranks(3, three, str(tmp_path), keras=True)


def three(folder):
    with in_float64():
        for build in RULES:
            trains(build, Grid(Team(), tensor=3), folder, 1e-12)


@pytest.mark.thorough
def test_with_data_parallelism_pipelines_and_clipping(on_ranks, tmp_path):
    on_ranks(4, together, str(tmp_path), keras=True)


def together(folder):
    """One rank, then D x T = 2 x 2, then D x S x T = 1 x 2 x 2, then one, from one folder."""
    # With Adam's usual epsilon, the last digit of a gradient near 0 decides an update's sign.
    adam = optimizers.Adam(learning_rate=0.01, epsilon=0.01)
    # The second batch of an epoch has one sample, so one of the copies has none.
    options = {"checkpoint": f"{folder}/run", "clip_norm": 0.5, "batch_size": 12}
    grid = Grid(Team(), tensor=2)
    serial, found, batch = trainers(gpt, grid, adam, validate=True, **options)
    if serial is not None:
        serial.fit(1)
        saving, serial.run.saving = serial.run.saving, None
        serial.fit(2)
    Team().barrier()
    assert found.resume() and found.steps == 2
    found.fit(1)
    grid = Grid(Team(), 2, 2)
    part = model_parallel.KerasTensorReplica(gpt()[0], grid, sequence=True)
    part = PipelinedReplica(part, grid, "1f1b", 3, layers=["block_1_norm_2"], sample=batch[0][:2])
    how = dict(optimizer=adam, learning_rate=0.01, progress=False, **options)
    found = Trainer(part, found.run.dataset, "synchronous", **how)
    assert found.resume() and len(found.history.epochs) == 2
    found.fit(1)
    found.save(f"{folder}/whole.keras")
    if serial is not None:
        for mine, theirs in zip(found.history.epochs, serial.history.epochs, strict=True):
            assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=2e-5)
        same_file(f"{folder}/whole.keras", serial, batch, 1e-5)
        same_vectors(serial, saving, 3, 1e-5)


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


def test_proposals_know_what_it_keeps_and_sends():
    from tutorial_dl import replica
    from tutorial_dl.model_parallel.keras_costs import Measured

    model, batch = gpt()
    measured = Measured(replica.of(model), batch, 2e-3, 1e-3, 1)
    plain, in_parts = (
        {one.name: one for one in measured.costs(2, sequence)} for sequence in (False, True)
    )
    assert plain["norm"].kept == 11 * 12 and in_parts["norm"].kept == 5 * 12
    assert in_parts["block_1_dense_1"].kept == plain["block_1_dense_1"].kept == 11 * 24
    each = 11 * 12
    for costs, sums, calls in ((plain, 4, 4), (in_parts, 4 + 2 / 2, 8 + 2)):
        assert sum(one.summed for one in costs.values()) == sums * each
        assert sum(one.sums for one in costs.values()) == calls


def test_too_few_positions_are_refused():
    from tutorial_dl.model_parallel.keras_tensor import Cut

    x = keras.Input((2, 6))
    model = keras.Model(x, layers.MultiHeadAttention(3, 2, name="attend")(x, x), name="short")
    model.compile(loss="mse")
    words = "model 'short' has nothing .* that 3 ranks could divide: .* at least 3 positions; leave"
    with pytest.raises(ValueError, match=words) as error:
        Cut(model, SimpleNamespace(size=3, rank=0), sequence=True)
    assert "\n" not in str(error.value)
