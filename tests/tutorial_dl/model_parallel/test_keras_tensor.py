"""Keras models cut by columns, rows and heads train as one process."""

from pathlib import Path

import divided_models
import numpy as np
import pytest
from divided_models import (
    Fails,
    fails_and_recovers,
    in_float64,
    options_of,
    same_file,
    same_training,
    same_vectors,
    train_command,
)
from keras_networks import keras, layers

from numba_kernels import optimizers
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, model_parallel, models, replica, strategies, timeline
from tutorial_dl.config import RunConfig
from tutorial_dl.model_parallel import Grid, PipelinedReplica
from tutorial_dl.replica.consistency import DriftError
from tutorial_dl.training.setup import prepare

pytestmark = pytest.mark.xdist_group("keras")

TEXT = data.text(length=12, characters=3000)
RANDOM = np.random.default_rng(3)
IMAGES, LABELS = RANDOM.standard_normal((13, 6, 6, 1)).astype("f4"), RANDOM.integers(0, 3, 13)


def start(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def gpt():
    """A pair, heads, and an embedding by rows; 13 of its samples."""
    return models.gpt(TEXT, seed=1, width=12, heads=6, blocks=1), TEXT.train.take(slice(0, 13))


def dense(name, units, activation=None, seed=0, **options):
    return layers.Dense(units, activation, kernel_initializer=start(seed), name=name, **options)


def mlp(dropout=0.4):
    """Dropout between a pair, of which each rank has a part, and dropout that all have alike."""
    chain = [
        keras.Input((6, 6, 1)),
        layers.Flatten(name="flat"),
        dense("one", 12, "tanh", 1),
        layers.Dropout(dropout, seed=4, name="inside"),
        dense("two", 8, "softmax", 2),
        layers.Dropout(dropout, seed=5, name="outside"),
        layers.BatchNormalization(name="norm"),
        dense("last", 3, "softmax", 3),
    ]
    model = keras.Sequential(chain)
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, (IMAGES, LABELS)


def convolution(name, filters, seed):
    return layers.Conv2D(filters, 3, activation="relu", kernel_initializer=start(seed), name=name)


def cnn():
    """A pair of convolutions, and a gated pair of dense layers: two by columns share one Enter."""
    x = inputs = keras.Input((6, 6, 1))
    x = convolution("conv_2", 4, 2)(convolution("conv_1", 6, 1)(x))
    x = layers.Flatten(name="flat")(x)
    gate, up = dense("gate", 12, "silu", 3)(x), dense("up", 12, None, 4)(x)
    x = dense("down", 5, None, 5, use_bias=False)(layers.Multiply(name="times")([gate, up]))
    model = keras.Model(inputs, dense("last", 3, "softmax", 6)(x))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, (IMAGES, LABELS)


RULES = {
    gpt: {
        "*_attention": "heads",
        "*_dense_1": "columns",
        "*_dense_2": "rows",
        "positions": "rows",
        "*": "replicate",
    },
    mlp: None,
    cnn: {
        "conv_1": "columns",
        "conv_2": "rows",
        "gate": "columns",
        "up": "columns",
        "down": "rows",
    },
}
# Sums forward and backward; the inputs of a model need no gradient
SUMS = {gpt: (3, 2), mlp: (1, 0), cnn: (2, 1)}


def trainers(build, grid, *optimizer, **options):
    """Of divided_models.py, with the layers of `build` cut by its rules."""

    def part(model):
        return model_parallel.KerasTensorReplica(model, grid, RULES.get(build))

    strategy = "synchronous"
    return divided_models.trainers(build, part, strategy, *optimizer, **options)


def trains(build, grid, folder, near, **options):
    """20 updates of 7 and 6 samples; the file is a plain .keras file with the optimizer's state."""
    serial, found, batch = trainers(build, grid, **options)
    if serial is not None:
        serial.fit(10)
    found.fit(10)
    same_training(found, serial, batch, near)
    path = Path(folder, f"{build.__name__}.keras")
    found.save(path)
    if serial is not None:
        assert int(same_file(path, serial, batch, near).optimizer.iterations) == 20
        serial.fit(1)
    found.fit(1)  # the weights still lie where they are trained
    same_training(found, serial, batch, near)
    sums = found.replica.sums
    forward, backward = sums.forward, sums.backward
    with timeline.record() as seen:
        found.replica.compute_gradient(batch)
    expected = tuple(n * options.get("accumulate", 1) for n in SUMS[build])
    assert (sums.forward - forward, sums.backward - backward) == expected
    # Each is seen as what it is, with its waits, though a thread of TensorFlow's may compute it
    names = [name for name, *_ in seen.taken["spans"]]
    assert (names.count("sum forward"), names.count("sum backward")) == expected
    assert seen.taken["others"] == 0
    return found


def test_two_ranks_train_and_fail_as_one(on_ranks, tmp_path):
    on_ranks(2, two, str(tmp_path), keras=True)


def two(folder):
    grid, fails = Grid(Team(), tensor=2), Fails()
    goes_on(trains(mlp, grid, folder, 1e-5, callbacks=[fails]), fails)  # masks agree again, too
    trains(cnn, grid, folder, 1e-5, accumulate=3)
    in_half_precision(grid)
    found, rank = trains(gpt, grid, folder, 1e-5, callbacks=[fails]), grid.team.rank
    goes_on(found, fails)
    # Then the weights of rank 1 are not the others', which is an error.
    assert found.history.epochs[-1]["loss"] < found.history.epochs[0]["loss"]
    if rank == 1:
        mine = found.replica.holding.mine
        segment = next(one.here for one in mine if "norm_1" in one.here.name)
        segment.of(found.replica.parameters)[0] += 1
    with pytest.raises(DriftError, match="ranks hold different weights"):
        found.fit(1)
    found.team.recover()
    compressed = strategies.Synchronous(grid.team, compression="fp16")
    with pytest.raises(ValueError, match="tensor groups of 2, 1 copy: leave out algorithm, one_c"):
        Trainer(found.replica, found.run.dataset, compressed)
    with pytest.raises(
        ValueError, match="lamb needs norms of whole layers, of which each rank has"
    ):
        found.strategy.check_optimizer(optimizers.get("lamb"))
    config = RunConfig.of(model="mlp", tensor=2, tensor_rules="dense_1=columns", quiet=True)
    with pytest.raises(ValueError, match="layer 'dense_2' lies behind 'dense_1', which is cut"):
        prepare(config, found.team)


def in_half_precision(grid):
    """20 steps as one process in half precision makes them; a step that overflows is skipped."""
    for policy, near in (("mixed_bfloat16", 2e-2), ("mixed_float16", 4e-3)):
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            serial, found, _ = trainers(lambda: mlp(0.0), grid, "sgd", validate=False)
        finally:
            keras.config.set_dtype_policy(before)
        found.replica.model.run_eagerly = True
        for one in (serial, found):
            if one is not None:
                one.fit(10)
        assert found.replica.dtype == np.float32
        holding = found.replica.holding
        ours = holding.joined(found.replica.parameters, 0, holding.size)
        if serial is not None:
            expected = serial.replica.parameters
            np.testing.assert_allclose(ours, expected, rtol=0, atol=near * np.abs(expected).max())
            for mine, theirs in zip(found.history.epochs, serial.history.epochs, strict=True):
                assert mine["loss"] == pytest.approx(theirs["loss"], rel=near)
            scales = [one.strategy.loss_scale for one in (serial, found)]
            assert scales == [None, None] or scales[0].values == scales[1].values
    found.strategy.loss_scale.values = [2.0**60, 0]
    weights = found.replica.parameters.copy()
    loss, samples = found.strategy.step((IMAGES[:4], LABELS[:4]))
    assert samples == 4 and np.isfinite(loss)
    np.testing.assert_array_equal(found.replica.parameters, weights)
    assert (
        found.strategy.loss_scale.values == found.strategy.save()[0]["loss_scale"] == [2.0**59, 0]
    )


def goes_on(found, fails):
    """Rank 1 raises, and after a recovery both train on."""
    fails.armed = found.team.rank == 1
    fails_and_recovers(found, 3)
    found.fit(1)


@pytest.mark.thorough
def test_three_ranks_train_as_one_to_twelve_digits(on_ranks, tmp_path):
    on_ranks(3, three, str(tmp_path), keras=True)


def three(folder):
    with in_float64():
        for build in RULES:
            grid = Grid(Team(), tensor=3)
            found = trains(build, grid, folder, 1e-12, validate=False, eager=True)
            assert found.replica.dtype == np.float64


@pytest.mark.thorough
def test_with_data_parallelism_pipelines_and_clipping(on_ranks, tmp_path):
    on_ranks(4, together, str(tmp_path), keras=True)


def together(folder):
    """One rank, then D x T = 2 x 2, then D x S x T = 1 x 2 x 2, then one, from one folder."""
    # With Adam's usual epsilon, the last digit of a gradient near 0 decides an update's sign.
    adam = optimizers.Adam(learning_rate=0.01, epsilon=0.01)
    # The second batch of an epoch has one sample, so one of the copies has none.
    options = {"checkpoint": f"{folder}/run", "clip_norm": 0.5, "batch_size": 12}
    how = dict(optimizer=adam, learning_rate=0.01, progress=False, **options)
    grid = Grid(Team(), tensor=2)
    serial, found, batch = trainers(gpt, grid, adam, **options)
    if serial is not None:
        serial.fit(1)
        saving, serial.run.saving = serial.run.saving, None
        serial.fit(2)
    Team().barrier()
    assert found.resume() and found.steps == 2
    found.fit(1)
    grid = Grid(Team(), 2, 2)
    part = model_parallel.KerasTensorReplica(gpt()[0], grid)
    part = PipelinedReplica(part, grid, "1f1b", 3, layers=["block_1_norm_2"], sample=batch[0][:2])
    found = Trainer(part, found.run.dataset, "synchronous", **how)
    assert found.resume() and len(found.history.epochs) == 2
    found.fit(1)
    found.save(f"{folder}/whole.keras")
    part.compute_gradient(batch)
    at_once = part.gradient.copy()
    for stage in part.pipeline.stages:
        stage.apart = True  # as zero-bubble schedules compute it
    part.compute_gradient(batch)
    near = 1e-5 * np.abs(at_once).max()
    np.testing.assert_allclose(part.gradient, at_once, rtol=0, atol=near)
    outputs = found.predict(batch[0])
    if serial is not None:
        for mine, theirs in zip(found.history.epochs, serial.history.epochs, strict=True):
            assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=2e-5)
        loaded = keras.saving.load_model(f"{folder}/whole.keras")
        np.testing.assert_allclose(loaded(batch[0]), outputs, rtol=0, atol=1e-6)
        same_vectors(serial, saving, 3, 1e-5)
        assert serial.strategy.state.step == 6


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


DIES = """
from tutorial_dl.data import digits
DATA = digits()
import os, signal
from mpi4py import MPI
from tutorial_dl.data import Data, Dataset
class Dies(Data):
    times = 0
    def take(self, samples):
        Dies.times += 1
        if MPI.COMM_WORLD.rank == 1 and Dies.times > 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().take(samples)
def data():
    train = Dies(DATA.train.inputs, DATA.train.targets)
    return Dataset('some', train, DATA.validation, classes=DATA.classes)
"""


def a_rank_dies(tmp_path):
    """The command ends, in one line; `make soak` does it, too."""
    _, _, *data = options_of(tmp_path, __file__, DIES)
    done = train_command("--model", "mlp", *data, "--tensor", 2, "--quiet")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "a rank was ended by signal SIGKILL" in done.stderr


@pytest.mark.thorough
def test_a_rank_that_dies_ends_all(tmp_path):
    a_rank_dies(tmp_path)
