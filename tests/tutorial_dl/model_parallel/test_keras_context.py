"""Keras models on parts of sequences train as one process; what mixes positions is refused."""

import re
from functools import cache
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
from keras_networks import keras, layers

from numba_kernels import optimizers
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, model_parallel, models, replica
from tutorial_dl.model_parallel import Grid, PipelinedReplica
from tutorial_dl.training import callbacks

pytestmark = pytest.mark.xdist_group("keras")

TEXT = data.text(length=12, characters=3000)
RANDOM = np.random.default_rng(3)
NUMBERS = RANDOM.standard_normal((13, 12, 3)).astype("f4")
LABELS = RANDOM.integers(0, 4, (13, 12))
WAVES = np.sin(np.arange(12)[None, :, None] * np.array([0.1, 0.5, 1, 2, 3, 4])).astype("f4")


def gpt():
    """Causal; its numbers of positions are computed from the tokens."""
    return models.gpt(TEXT, seed=1, width=12, heads=2, blocks=1), TEXT.train.take(slice(0, 13))


def start(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def full(dropout=0.3, penalty="l2"):
    """All positions see all; masks, a constant along positions, a regulariser, a cross attention.

    An operation on inputs alone, which turns them round, mixes positions.
    """
    x = inputs = keras.Input((12, 3))
    x = layers.Concatenate()([x, x - keras.ops.flip(inputs, axis=1)])
    x = layers.Conv1D(6, 1, kernel_initializer=start(1), name="one")(x) + WAVES
    x = layers.SpatialDropout1D(dropout, seed=3)(x)
    y = layers.LayerNormalization(name="norm")(x)
    heads = layers.MultiHeadAttention(2, 3, kernel_initializer=start(4), name="attend")
    y = layers.Dropout(dropout, seed=5, name="drop")(heads(y, x, y))
    x = layers.Add(name="both")([x, y])
    x = layers.Dense(8, "silu", kernel_initializer=start(6), kernel_regularizer=penalty)(x)
    x = layers.Softmax()(layers.Dense(4, kernel_initializer=start(7))(x))
    model = keras.Model(inputs, x, name="full")
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, (NUMBERS, LABELS)


def trainers(build, grid, *optimizer, **options):
    """Of divided_models.py, in batches of 4: each rank has a part of each sequence."""

    def part(model):
        return model_parallel.KerasContextReplica(model, grid)

    options, strategy = {"batch_size": 4} | options, "synchronous"
    return divided_models.trainers(build, part, strategy, *optimizer, **options)


def trains(build, grid, folder, near, **options):
    """20 updates of 4 samples and 1; the file is a plain .keras file with the optimizer's state."""
    serial, found, batch = trainers(build, grid, **options)
    if serial is not None:
        serial.fit(5)
    found.fit(5)
    same_training(found, serial, batch, near)
    path = Path(folder, f"{build.__name__}.keras")
    found.save(path)
    if serial is not None:
        assert int(same_file(path, serial, batch, near).optimizer.iterations) == 20
    ranks, before = grid.context.size, found.replica.sequences.sent
    found.replica.compute_gradient(batch)
    block = len(batch[1]) * (12 if build is gpt else 6) * 12 // ranks * found.replica.dtype.itemsize
    rings = 2 * (ranks - 1) + 2 * (ranks - 1) + 2 * ranks  # k and v twice, and their gradients
    assert found.replica.sequences.sent - before == rings * block
    return found


def test_two_ranks_train_and_fail_as_one(on_ranks, tmp_path):
    on_ranks(2, two, str(tmp_path), keras=True)


def two(folder):
    grid, fails = Grid(Team(), context=2), Fails()
    trains(full, grid, folder, 1e-5)
    found = trains(gpt, grid, folder, 1e-5, callbacks=[fails])
    fails.armed = grid.team.rank == 1
    fails_and_recovers(found, 3)
    found.fit(1)
    assert found.history.epochs[-1]["loss"] < found.history.epochs[0]["loss"]
    # Layers without a seed of their own: all ranks draw the same masks.
    x = keras.Input((12, 3))
    drop = compiled(x, layers.Dense(2)(layers.Dropout(0.5)(x)))
    seeds = model_parallel.KerasContextReplica(drop, grid).random
    assert (grid.team.broadcast(seeds.copy()) == seeds).all()
    with pytest.raises(ValueError, match=r"targets of shape \(4,\); context parallelism"):
        model_parallel.KerasContextReplica(drop, grid).try_out((NUMBERS[:4], LABELS[:4, 0]), True)
    # A loss that is none of single positions
    model, batch = full()
    model.compile(loss=keras.losses.CosineSimilarity(axis=1))
    one_hot = np.eye(4, dtype="f4")[batch[1]]
    with pytest.raises(ValueError, match="model 'full': its loss is not a mean over positions"):
        model_parallel.KerasContextReplica(model, grid).try_out((batch[0], one_hot), True)
    model.compile(loss="mse", metrics=[lambda y, z: keras.ops.mean(z)])
    with pytest.raises(ValueError, match="model 'full': context parallelism takes metrics of Kera"):
        model_parallel.KerasContextReplica(model, grid).try_out((batch[0], one_hot), True)


class Counts(callbacks.Callback):
    """Counts the samples of all steps."""

    samples = 0

    def on_step_end(self, trainer, loss, samples):
        self.samples += samples


@pytest.mark.thorough
def test_three_ranks_train_as_one_to_twelve_digits(on_ranks, tmp_path):
    on_ranks(3, three, str(tmp_path), keras=True)


def three(folder):
    how = {"eager": True, "validate": False}
    with in_float64():
        for build in (gpt, full):
            found = trains(build, Grid(Team(), context=3), folder, 1e-12, **how)
            assert found.replica.dtype == np.float64
            in_two_stages(build, found.replica.grid)


def in_two_stages(build, grid):
    """Two stages of parts on each rank, 2 micro-batches of 13 samples; B and W together, apart."""
    model, batch = build() if build is gpt else build(dropout=0, penalty=None)
    model.run_eagerly = True  # a graph takes longer to make
    serial = replica.of(model)
    loss, _ = serial.compute_gradient(batch)
    expected, outputs = serial.gradient.copy(), serial.predict(batch[0])
    cut = ["block_1_attention"] if build is gpt else ["attend"]
    how = dict(schedule="interleaved", micro_batches=2, chunks=2, layers=cut)
    stages = PipelinedReplica(model_parallel.KerasContextReplica(serial, grid), grid, **how)
    stages.try_out(batch, True)
    with pytest.raises(ValueError, match="context parallelism takes one per position"):
        stages.try_out((batch[0], batch[1][:, 0]), True)
    for apart in (False, True):
        for stage in stages.pipeline.stages:
            stage.apart = apart
        before = stages.sequences.sent
        mine, samples = stages.compute_gradient(batch)
        block = 13 * (12 if build is gpt else 6) * 4 * 8
        backward = 2 * 2 + 2 * 3  # k and v, and their gradients, which W needs again
        assert stages.sequences.sent - before == (4 + backward * (1 + apart)) * block
        mean = grid.context.allreduce(np.append(stages.gradient, mine)) / 3
        assert mean[-1] == pytest.approx(loss, rel=1e-12) and samples == 13
        np.testing.assert_allclose(mean[:-1], expected, rtol=0, atol=1e-12 * abs(expected).max())
    np.testing.assert_allclose(stages.predict(batch[0]), outputs, rtol=0, atol=1e-12)


@pytest.mark.thorough
def test_with_data_and_tensor_parallelism_and_clipping(on_ranks, tmp_path):
    on_ranks(4, together, str(tmp_path), keras=True)


def together(folder):
    """One rank, then D x C, C x T and S x C = 2 x 2, then one, from one folder: 20 steps."""
    # With Adam's usual epsilon, the last digit of a gradient near 0 decides an update's sign.
    adam = optimizers.Adam(learning_rate=0.01, epsilon=0.01)
    # The second batch of an epoch has one sample, so one of the groups has none.
    options = {"checkpoint": f"{folder}/run", "clip_norm": 0.5, "batch_size": 12}
    serial, found, batch = trainers(gpt, Grid(Team(), context=2), adam, eager=True, **options)
    counts = Counts()
    if serial is not None:
        serial.fit(1)
        saving, serial.run.saving = serial.run.saving, None
        serial.fit(9)
    Team().barrier()
    assert found.resume() and found.steps == 2
    found.fit(1)
    grid = Grid(Team(), tensor=2, context=2)
    part = model_parallel.KerasTensorReplica(gpt()[0], grid)
    strategy = "synchronous"
    part.model.run_eagerly = True
    how = dict(optimizer=adam, learning_rate=0.01, progress=False, callbacks=[counts], **options)
    found = Trainer(part, found.run.dataset, strategy, **how)
    assert found.resume() and len(found.history.epochs) == 2
    found.fit(1)
    assert counts.samples == 13
    saved, outputs = f"{folder}/whole.keras", found.predict(batch[0])
    found.save(saved)
    if serial is not None:
        loaded = keras.saving.load_model(saved)(batch[0])
        np.testing.assert_allclose(loaded, outputs, rtol=0, atol=1e-5)
    found, fails = in_stages(found, serial, saved, how)
    if serial is not None:
        same_vectors(serial, saving, 10, 1e-5)
    # Rank 1 fails while rank 0, of the same stage, waits for its keys within a graph.
    found.run.saving = None
    fails.armed = Team().rank == 1
    fails_and_recovers(found, 2)
    found.fit(1)
    assert found.history.epochs[-1]["loss"] < found.history.epochs[0]["loss"]


def in_stages(found, serial, saved, how):
    """D x S x C = 1 x 2 x 2 goes on in 3 micro-batches, up to step 20, and saves."""
    grid, batch, fails = Grid(Team(), 2, context=2), gpt()[1], Fails()
    part = model_parallel.KerasContextReplica(gpt()[0], grid)
    part = PipelinedReplica(part, grid, "1f1b", 3, layers=["block_1_norm_2"], sample=batch[0][:2])
    how["callbacks"] = [fails]
    found = Trainer(part, found.run.dataset, "synchronous", **how)
    assert found.resume() and found.steps == 6
    found.fit(7)
    assert found.steps == 20
    outputs = found.predict(batch[0])
    found.save(saved)
    if serial is not None:
        for mine, theirs in zip(found.history.epochs, serial.history.epochs, strict=True):
            assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=2e-5)
        loaded = same_file(saved, serial, batch, 1e-5)(batch[0])
        np.testing.assert_allclose(outputs, loaded, rtol=0, atol=1e-5)
        (low, high), expected = part.slices[0], serial.replica.parameters
        near = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(part.parameters, expected[low:high], rtol=0, atol=near)
    return found, fails


def chain(*more, inputs=(12, 3), **options):
    model = keras.Sequential([keras.Input(inputs), *more])
    model.compile(**{"loss": "mse", **options})
    return model


def attention(call=None, **options):
    x = keras.Input((12, 8))
    heads = layers.MultiHeadAttention(4, 2, name="attend", **options)
    return compiled(x, layers.Dense(2)(heads(x, x, **(call or {}))))


def compiled(inputs, outputs):
    model = keras.Model(inputs, outputs, name="mine")
    model.compile(loss="mse")
    return model


def operation(function):
    x = keras.Input((12, 3))
    return compiled(x, function(layers.Dense(2)(x)))


def two_outputs():
    x = keras.Input((12, 3))
    return compiled(x, [x + 1, layers.Dense(2)(x)])


@cache
def mine():
    """A user's layer. (Classes of the module would load TensorFlow when tests are collected.)"""

    class Mine(layers.Layer):
        makes_no_mask = True

        def call(self, x):
            return x

    return Mine


def noisy():
    class Noisy(layers.Dropout):
        makes_no_mask = True

        def call(self, inputs, training=False):
            return inputs + 1

    return Noisy(0.5, name="noisy")


def own():
    class Own(layers.Dense):
        makes_no_mask = by_position = True

    return Own(2, over_positions, name="own")


def over_positions(x):
    return keras.ops.softmax(x, axis=1)


MASK = np.ones((1, 12, 12), bool)
ON = "on parts of sequences: "


@pytest.mark.parametrize(
    ("words", "build"),
    [
        ("layer 'conv', a Conv1D, " + ON + "use Dense, or Conv1D with kernel_size=1",
         lambda: chain(layers.Conv1D(4, 3, padding="same", name="conv"))),
        ("layer 'flat', a Flatten, " + ON + "let the model predict at each position",
         lambda: chain(layers.Dense(2), layers.Flatten(name="flat"), layers.Dense(1))),
        ("layer 'pool', a GlobalAveragePooling1D, " + ON + "let the model predict",
         lambda: chain(layers.Dense(2), layers.GlobalAveragePooling1D(name="pool"))),
        ("layer 'lstm', a LSTM, " + ON + "use MultiHeadAttention",
         lambda: chain(layers.LSTM(4, return_sequences=True, name="lstm"))),
        ("layer 'norm', a BatchNormalization, " + ON + "use LayerNormalization",
         lambda: chain(layers.Dense(2), layers.BatchNormalization(name="norm"))),
        ("layer 'noise', a GaussianNoise, " + ON + "use Dropout",
         lambda: chain(layers.GaussianNoise(0.1, name="noise"))),
        ("layer 'along', a LayerNormalization, " + ON + "only MultiHeadAttention may mix positions",
         lambda: chain(layers.Dense(2), layers.LayerNormalization(axis=1, name="along"))),
        ("layer 'dense', a Dense, " + ON + "only MultiHeadAttention may mix positions",
         lambda: chain(layers.Dense(2, name="dense"), inputs=(12,))),
        ("layer 'mine', a Mine, " + ON + "if it computes each position by itself, give its class",
         lambda: chain(layers.Dense(2), mine()(name="mine"))),
        ("layer 'inner', a Sequential, " + ON + "use its layers in the model itself",
         lambda: chain(keras.Sequential([layers.Dense(3)], name="inner"))),
        ("Flip, " + ON, lambda: operation(lambda x: keras.ops.flip(x, axis=1))),
        ("Add, " + ON,
         lambda: operation(lambda x: x + np.ones((1, 1, 12, 2), "f4"))),
        ("GetItem, " + ON, lambda: operation(lambda x: x[:, 1:])),
        ("layer 'attend' " + ON + "it has dropout of its own; use a Dropout layer behind it",
         lambda: attention(dropout=0.1)),
        ("layer 'attend' " + ON + "it is given attention_mask; leave it out",
         lambda: attention({"attention_mask": MASK})),
        ("layer 'attend' " + ON + "it has an activity_regularizer, which is of all positions",
         lambda: attention(activity_regularizer="l2")),
        ("layer 'noisy', a Noisy, " + ON, lambda: chain(noisy())),
        ("layer 'own', a Own, " + ON, lambda: chain(own())),
        ("layer 'attend' " + ON + "value_dim must be key_dim, 2, got 3",
         lambda: attention(value_dim=3)),
        ("a sequence of 12 positions can't be divided evenly over 5 ranks: use sequences of 10 or "
         "15, or 1, 2, 3, 4, 6, 12 ranks", attention),
        ("must have a fixed number of positions, (samples, positions, ...), got (None, None, 3)",
         lambda: chain(layers.Dense(2), inputs=(None, 3))),
        ("context parallelism can't compute model 'mine': it has 2 outputs; use one", two_outputs),
        ("context parallelism can't compute layer 'half': it computes in bfloat16, its weights are",
         lambda: chain(layers.Dense(2, dtype="mixed_bfloat16", name="half"))),
        ("with a mask: its loss is not a mean over samples",
         lambda: chain(layers.Masking(), layers.Dense(2))),
    ],
)  # fmt: skip
def test_what_mixes_positions_is_refused_by_name(words, build):
    from tutorial_dl.model_parallel.keras_context import Divided  # loads TensorFlow

    ranks = 5 if "5 ranks" in words else 2
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        Divided(build(), SimpleNamespace(size=ranks, rank=0))
    assert "\n" not in str(error.value)


def test_a_layer_of_a_user_may_say_that_it_fits():
    from tutorial_dl.model_parallel.keras_context import Divided

    class Fits(mine()):
        by_position = True

    local = Divided(chain(Fits(), layers.Dense(2)), SimpleNamespace(size=3, rank=1)).local
    assert local.outputs[0].shape == (None, 4, 2)
    x = np.arange(36.0).reshape(1, 12, 3)
    assert local(x).shape == (1, 4, 2)
