"""Keras models cut by columns, rows and heads train as one process; what can't be is refused."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from keras_networks import keras, layers

from numba_kernels import optimizers
from numba_kernels.errors import PeerError
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, models, strategies
from tutorial_dl.model_parallel import Grid, KerasTensorReplica, PipelinedReplica
from tutorial_dl.replica.consistency import DriftError
from tutorial_dl.training import callbacks

pytestmark = pytest.mark.xdist_group("keras")

TEXT = data.text(length=10, characters=3000)
RANDOM = np.random.default_rng(3)
IMAGES, LABELS = RANDOM.standard_normal((13, 6, 6, 1)).astype("f4"), RANDOM.integers(0, 3, 13)


def start(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def gpt():
    """Heads and pairs that `found` finds; 13 of its samples."""
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
    gpt: None,
    mlp: None,
    cnn: {
        "conv_1": "columns",
        "conv_2": "rows",
        "gate": "columns",
        "up": "columns",
        "down": "rows",
    },
}
SUMS = {gpt: 2, mlp: 1, cnn: 2}  # pairs


def trainers(build, grid, optimizer="momentum", **options):
    """The same training by one process, and by the ranks of a grid."""
    model, batch = build()
    samples = data.Data.of(*batch)
    dataset = data.Dataset("some", samples, samples, int(batch[1].max()) + 1)
    how = dict(optimizer=optimizer, learning_rate=0.01, batch_size=7, progress=False)
    alone = Team().split(Team().rank)
    serial = Trainer(
        build()[0], dataset, "serial", team=alone, **how | options.pop("of_serial", {})
    )
    part = KerasTensorReplica(model, grid, RULES[build])
    return serial, Trainer(part, dataset, strategies.TensorParallel(grid), **how | options), batch


def same(found, serial, batch, near=1e-5):
    for mine, theirs in zip(found.history.epochs, serial.history.epochs, strict=True):
        for name in ("loss", "val_loss", "val_accuracy", "accuracy"):
            assert mine[name] == pytest.approx(theirs[name], rel=2 * near), name
    pieces = found.replica.pieces
    whole = pieces.joined(found.replica.parameters, 0, pieces.whole_size)
    expected = serial.replica.parameters
    np.testing.assert_allclose(whole, expected, rtol=0, atol=near * np.abs(expected).max())
    state = serial.replica.state
    np.testing.assert_allclose(found.replica.state, state, rtol=1e-5, atol=1e-7)
    outputs = serial.replica.predict(batch[0])
    np.testing.assert_allclose(found.predict(batch[0]), outputs, rtol=1e-3, atol=1e-6)


def test_two_ranks_train_and_save_as_one(on_ranks, tmp_path):
    on_ranks(2, train, str(tmp_path), keras=True)


def test_three_ranks_train_and_save_as_one(on_ranks, tmp_path):
    on_ranks(3, train, str(tmp_path), keras=True)


def train(folder):
    """20 updates of 7 and 6 samples; the file is a plain .keras file with the optimizer's state."""
    grid = Grid(Team(), tensor=Team().size)
    for build in RULES:
        serial, found, batch = trainers(build, grid)
        serial.fit(10)
        sums = found.replica.sums
        found.fit(1)
        forward, backward = sums.forward, sums.backward
        found.replica.compute_gradient(batch)
        assert sums.forward - forward == SUMS[build]
        # The inputs of a model need no gradient, and those of a gpt are tokens.
        assert sums.backward - backward == SUMS[build] - (build is not gpt)
        found.fit(9)
        if build is mlp:  # that gradient has drawn masks
            serial, found, batch = trainers(build, grid)
            serial.fit(10)
            found.fit(10)
        same(found, serial, batch)
        path = Path(folder, f"{build.__name__}.keras")
        found.save(path)
        Team().barrier()
        loaded = keras.saving.load_model(path)
        outputs = serial.replica.predict(batch[0])
        np.testing.assert_allclose(loaded(batch[0]), outputs, rtol=1e-3, atol=1e-6)
        assert int(loaded.optimizer.iterations) == 20
        found.fit(1)  # the weights still lie where they are trained
        serial.fit(1)
        same(found, serial, batch)


def test_double_precision_to_twelve_digits(on_ranks):
    on_ranks(2, doubles, keras=True)


def doubles():
    before = keras.config.dtype_policy()
    keras.config.set_floatx("float64"), keras.config.set_dtype_policy("float64")
    try:
        grid = Grid(Team(), tensor=2)
        for build in RULES:
            serial, found, batch = trainers(build, grid, "adam")
            assert found.replica.dtype == np.float64
            serial.fit(10), found.fit(10)
            same(found, serial, batch, 1e-12)
    finally:
        keras.config.set_floatx("float32"), keras.config.set_dtype_policy(before)


def test_with_data_parallelism_pipelines_and_clipping(on_ranks, tmp_path):
    on_ranks(4, together, str(tmp_path), keras=True)


def together(folder):
    """D x T = 2 x 2, then D x S x T = 1 x 2 x 2, then D = 4 go on from each other's checkpoints."""
    checkpoint = {"checkpoint": f"{folder}/run", "clip_norm": 0.5}
    # With Adam's usual epsilon, the last digit of a gradient near 0 decides an update's sign.
    adam = optimizers.Adam(learning_rate=0.01, epsilon=0.01)
    how = dict(optimizer=adam, learning_rate=0.01, batch_size=7, progress=False, **checkpoint)
    grid = Grid(Team(), tensor=2)
    serial, found, batch = trainers(gpt, grid, adam, of_serial={"clip_norm": 0.5}, **checkpoint)
    serial.fit(4)
    found.fit(2)
    dataset = found.run.dataset
    grid = Grid(Team(), 2, 2)
    part = KerasTensorReplica(gpt()[0], grid)
    part = PipelinedReplica(part, grid, "1f1b", 3, layers=["block_1_norm_2"], sample=batch[0][:2])
    found = Trainer(part, dataset, strategies.TensorParallel(grid), **how)
    assert found.resume() and len(found.history.epochs) == 2
    found.fit(1)
    found.save(f"{folder}/pipelined.keras")
    Team().barrier()
    loaded = keras.saving.load_model(f"{folder}/pipelined.keras")
    np.testing.assert_allclose(loaded(batch[0]), found.predict(batch[0]), rtol=1e-3, atol=1e-6)
    third = Trainer(gpt()[0], dataset, "synchronous", team=Team(), **how)
    assert third.resume() and len(third.history.epochs) == 3
    third.fit(1)
    for mine, theirs in zip(third.history.epochs, serial.history.epochs, strict=True):
        assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=2e-5)
    expected = serial.replica.parameters
    near = 2e-5 * np.abs(expected).max()
    np.testing.assert_allclose(third.replica.parameters, expected, rtol=0, atol=near)
    # And from one process's to a cut one's, in the middle of an epoch
    alone = Team().split(Team().rank)
    of_one = {
        "checkpoint": f"{folder}/{Team().rank}",
        "checkpoint_every": 1,
        "callbacks": [Stops()],
    }
    one = Trainer(gpt()[0], dataset, "serial", team=alone, **how | of_one)
    with pytest.raises(ArithmeticError):
        one.fit(1)
    Team().barrier()
    grid = Grid(Team(), tensor=2)
    of_all = {"checkpoint": f"{folder}/0"}
    last = Trainer(
        KerasTensorReplica(gpt()[0], grid), dataset, strategies.TensorParallel(grid), **how | of_all
    )
    assert last.resume() and last.steps == 1
    last.fit(1)
    assert last.history.epochs[0]["val_loss"] == pytest.approx(
        serial.history.epochs[0]["val_loss"], rel=2e-5
    )


class Stops(callbacks.Callback):
    """Raises in the second step, on the ranks where it is armed."""

    def __init__(self, armed=True, step=2):
        self.armed, self.step = armed, step

    def on_step_end(self, trainer, loss, samples):
        if self.armed and trainer.steps == self.step:
            self.armed = False
            raise ArithmeticError("no more")


def test_a_rank_that_raises_ends_all(on_ranks):
    on_ranks(2, raises, keras=True)


def raises():
    """Rank 1 raises, both go on afterwards; then its weights differ, which is an error."""
    grid = Grid(Team(), tensor=2)
    rank = grid.team.rank
    _, found, _ = trainers(gpt, grid, callbacks=[Stops(rank == 1, 3)])
    with pytest.raises(ArithmeticError if rank == 1 else PeerError, match="no more") as error:
        found.fit(3)
    assert rank == 1 or "rank 1" in str(error.value)
    found.team.recover()
    found.fit(2)
    assert found.history.epochs[-1]["loss"] < found.history.epochs[0]["loss"]
    if rank == 1:
        segment, _ = next(one for one in found.replica.pieces.own if "norm_1" in one[0].name)
        segment.of(found.replica.parameters)[0] += 1
    with pytest.raises(DriftError, match="ranks hold different weights"):
        found.fit(1)


def test_a_rank_that_dies_ends_all(tmp_path):
    """On the command line, which also names a cut that can't be made, before training."""
    (tmp_path / "mine.py").write_text(
        "import os, signal\n"
        "from mpi4py import MPI\n"
        "from tutorial_dl import data\n"
        "class Dies(data.Data):\n"
        "    def take(self, samples):\n"
        "        Dies.times = getattr(Dies, 'times', 0) + 1\n"
        "        if MPI.COMM_WORLD.rank == 1 and Dies.times > 5:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().take(samples)\n"
        "def dies():\n"
        "    whole = data.digits()\n"
        "    train = Dies(*whole.train.take(slice(None)))\n"
        "    return data.Dataset('digits', train, whole.validation, 10)\n"
    )
    options = ["--model", "mlp", "--data", f"{tmp_path}/mine.py:dies", "--tensor", "2", "--quiet"]
    done = run(*options)
    assert done.returncode == 1 and "a rank was ended by signal SIGKILL" in done.stderr, done.stderr
    done = run("--model", "mlp", "--tensor", "3", "--quiet")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert (
        "layer 'dense_1' has 512 units, which can't be divided evenly over 3 ranks: 1, 2, 4, 8"
        in done.stderr
    )


def run(*options):
    command = [sys.executable, "-m", "tutorial_dl", "train", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def chain(*more, inputs=(8,), **options):
    model = keras.Sequential([keras.Input(inputs), *more])
    model.compile(**{"loss": "mse", **options})
    return model


def shared():
    one, x = layers.Dense(8, name="one"), keras.Input((8,))
    model = keras.Model(x, layers.Dense(2, name="two")(one(one(x))))
    model.compile(loss="mse")
    return model


def within():
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(8, name="one")], name="inner")
    return chain(inner, layers.Dense(2, name="last"))


def pair(first=None, between=(), second=None):
    """Two dense layers with the given options, and layers between them."""
    one = layers.Dense(**{"units": 6, "name": "one"} | (first or {}))
    return chain(one, *between, layers.Dense(2, name="two", **(second or {})))


def attention(**options):
    x = keras.Input((4, 8))
    heads = layers.MultiHeadAttention(4, 2, name="attend", **options)
    model = keras.Model(x, layers.Dense(2, name="last")(heads(x, x)))
    model.compile(loss="mse")
    return model


PAIR = {"one": "columns", "two": "rows"}


@pytest.mark.parametrize(
    ("words", "build", "rules"),
    [
        ("layer 'one' has 6 units, which can't be divided evenly over 4 ranks: 1, 2, 3, 6 ranks can, "
         "or replicate it", pair, PAIR),
        ("rule 'three' matches no layer: the model has one, two", pair, {"three": "rows"}),
        ("rule 'one': columns, rows, heads, replicate, not 'cols'", pair, {"one": "cols"}),
        ("layer 'one', a Dense: columns or rows or replicate, not heads", pair, {"one": "heads"}),
        ("layer 'two' is cut by rows: it needs a layer that is cut by columns before it",
         lambda: pair({"units": 8}), {"two": "rows"}),
        ("layer 'one' is cut by columns: it needs one by rows behind it",
         lambda: chain(layers.Dense(8, name="one")), {"one": "columns"}),
        ("layer 'norm' lies behind 'one', which is cut by columns: only functions of single numbers "
         "and dropout may", lambda: pair({"units": 8}, [layers.LayerNormalization(name="norm")]), PAIR),
        ("layer 'one', cut by columns, has activation 'softmax', which is not known to take each",
         lambda: pair({"activation": "softmax"}), PAIR),
        ("layer 'one', cut by columns, has a kernel_regularizer: replicate it",
         lambda: pair({"kernel_regularizer": "l2"}), PAIR),
        ("layer 'two', cut by rows, has a bias_constraint: replicate it",
         lambda: pair({"units": 8}, second={"bias_constraint": "non_neg"}), PAIR),
        ("layer 'one', cut by columns, is frozen", lambda: pair({"trainable": False}), PAIR),
        ("layer 'one' occurs twice; layers that share weights can't be cut", shared,
         {"one": "columns"}),
        ("rule 'one': layer 'one' lies within another layer", within, {"one": "columns"}),
        ("layer 'attend', cut by heads, has dropout of its own, whose masks would differ",
         lambda: attention(dropout=0.1), None),
        ("layer 'attend' has 4 heads, which can't be divided evenly over 3 ranks: 1, 2, 4 ranks can",
         attention, None),
        ("layer 'grouped', cut by columns, has 2 groups: replicate it",
         lambda: chain(layers.Conv2D(8, 1, groups=2, name="grouped"), layers.Conv2D(2, 1),
                       inputs=(4, 4, 8)), {"grouped": "columns"}),
        ("has no layers to cut: neither MultiHeadAttention, nor two Dense or two convolutional",
         lambda: chain(layers.LSTM(4), layers.Dense(2, name="last"), inputs=(5, 3)), None),
        ("with a mask: its loss is not a mean over samples",
         lambda: chain(layers.Masking(), layers.Dense(8), layers.Dense(2), inputs=(5, 3)), None),
        ("can't compute layer 'half': it computes in bfloat16, its weights are float32",
         lambda: chain(layers.Dense(8, dtype="mixed_bfloat16", name="half"), layers.Dense(2)), None),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused_by_name(words, build, rules):
    from tutorial_dl.model_parallel.keras_tensor import Cut  # loads TensorFlow

    with pytest.raises(ValueError) as error:
        Cut(build(), SimpleNamespace(size=3 if "3 ranks" in words else 4, rank=0), rules)
    assert words in str(error.value) and "\n" not in str(error.value)
