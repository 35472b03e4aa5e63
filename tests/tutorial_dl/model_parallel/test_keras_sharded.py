"""Keras models whose gradients and weights ranks divide train as they do without; by group."""

from pathlib import Path

import numpy as np
import pytest
from divided_models import in_float64, with_shared_weights
from keras_networks import keras, layers

from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, models, strategies
from tutorial_dl.model_parallel import ShardedReplica

pytestmark = pytest.mark.xdist_group("keras")

TEXT = data.text(length=10, characters=3000)
RANDOM = np.random.default_rng(3)
IMAGES, LABELS = RANDOM.standard_normal((13, 6, 6, 1)).astype("f4"), RANDOM.integers(0, 3, 13)

WORDS, PLACES = (RANDOM.standard_normal((13, n)).astype("f4") for n in (4, 2))


def start(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def gpt():
    return models.gpt(TEXT, seed=1, width=16, heads=2, blocks=1), TEXT.train.take(slice(0, 13))


def convolutional():
    chain = [
        keras.Input((6, 6, 1)),
        layers.Conv2D(4, 3, activation="relu", kernel_initializer=start(1)),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(8, "relu", kernel_initializer=start(2)),
        layers.Dense(3, "softmax", kernel_initializer=start(3)),
    ]
    model = keras.Sequential(chain)
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, (IMAGES, LABELS)


def by_batch():
    """Dropout and statistics, which each rank has of its own share; weights of samples, AUC."""
    chain = [
        keras.Input((6, 6, 1)),
        layers.Flatten(),
        layers.Dense(12, "tanh", kernel_initializer=start(1)),
        layers.Dropout(0.4, seed=4),
        layers.Dense(8, kernel_initializer=start(2)),
        layers.BatchNormalization(),
        layers.Dense(1, "sigmoid", kernel_initializer=start(3)),
    ]
    model = keras.Sequential(chain)
    model.compile(loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
    return model, (IMAGES, (LABELS > 0).astype("f4")[:, None], 1 + LABELS.astype("f4"))


def several():
    """Two inputs, two outputs, and an activation that goes around a group."""
    image, words = keras.Input((6, 6, 1), name="image"), keras.Input((4,), name="words")
    early = layers.Dense(5, "tanh", kernel_initializer=start(1))(words)
    x = layers.Dense(6, "tanh", kernel_initializer=start(2))(layers.Flatten()(image))
    x = layers.Dense(6, "tanh", kernel_initializer=start(3))(x)
    x = layers.Concatenate()([x, early, words])
    place = layers.Dense(2, name="place", kernel_initializer=start(4))(x)
    kind = layers.Dense(3, "softmax", name="kind", kernel_initializer=start(5))(x)
    model = keras.Model([image, words], {"place": place, "kind": kind})
    losses = {"place": "mse", "kind": "sparse_categorical_crossentropy"}
    model.compile(loss=losses, metrics={"kind": "accuracy"})
    return model, ((IMAGES, WORDS), {"place": PLACES, "kind": LABELS})


def unusual():
    """A layer that is frozen, layers that heed `training`, one that gives weights themselves."""

    class Doubles(layers.Layer):
        """Computes something else in training, as dropout does, but without chance."""

        makes_no_mask = True

        def call(self, x, training=False):
            return 2 * x if training else x

    class Around(layers.Layer):
        """Its own `call` does not take `training`; that of the layer inside does."""

        makes_no_mask = True

        def build(self, shape):
            self.inside = Doubles()
            self.matrix = self.add_weight(shape=(6, 6), initializer=start(7))

        def call(self, x):
            return self.inside(keras.ops.matmul(x, self.matrix))

    class Table(layers.Layer):
        """Gives its weights themselves."""

        makes_no_mask = True

        def build(self, shape):
            self.table = self.add_weight(shape=(6, 3), initializer=start(8))

        def call(self, x):
            return self.table

    words = keras.Input((4,))
    frozen = layers.Dense(4, "tanh", kernel_initializer=start(1), name="frozen", trainable=False)
    x = layers.Dense(6, "tanh", kernel_initializer=start(2))(frozen(words))
    x = layers.Dense(6, "tanh", kernel_initializer=start(3))(Around()(x))
    x = Doubles()(x, training=True)  # which Keras's own models overrule as they evaluate
    table, x = Table()(x), layers.Dense(6, kernel_initializer=start(4))(x)
    x = keras.ops.einsum("ij,bi->bj", table, x)
    model = keras.Model(words, layers.Dense(2, kernel_initializer=start(5))(x))
    model.compile(loss="mse")
    return model, (WORDS, PLACES)


def trainer(build, stage, team, **options):
    model, batch = build()
    samples = data.Data.of(*batch)
    dataset = data.Dataset("some", samples, samples, None)
    if stage < 2:
        strategy = strategies.Synchronous(team, shard=stage)
        model.run_eagerly = True  # a graph takes longer to make than a few steps
    else:
        model, strategy = ShardedReplica(model, team, stage), "synchronous"
    how = dict(optimizer="momentum", learning_rate=0.01, batch_size=6, progress=False)
    # Batches of 6, 6 and 1 sample; a rank measures its share in several batches
    return Trainer(model, dataset, strategy, validation_batch_size=3, **how | options), batch


def weights(found):
    one = found.replica
    return found.strategy.update.weights() if hasattr(one, "shards") else one.parameters


def same(found, expected, x, near):
    """`expected` may be None on ranks other than 0."""
    ours, outputs = weights(found), keras.tree.flatten(found.predict(x))
    if expected is None:
        return
    for mine, theirs in zip(found.history.epochs, expected.history.epochs, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - {"seconds", "samples_per_second"}:
            assert mine[name] == pytest.approx(theirs[name], rel=3 * near, abs=near), name
    theirs = weights(expected)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=near * np.abs(theirs).max())
    np.testing.assert_allclose(found.replica.state, expected.replica.state, rtol=0, atol=near)
    for a, b in zip(outputs, keras.tree.flatten(expected.predict(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=near)


def trains(build, stage, team, near, folder=None, serial=True, **options):
    """7 epochs of 3 updates; expected: one process, or data parallelism with its own masks."""
    alone = team.split(team.rank)
    expected, batch = trainer(build, 1, alone if serial else team, **options)
    if serial and team.rank:
        expected = None
    else:
        expected.fit(7)
    found, _ = trainer(build, stage, team, **options)
    found.fit(3)
    if folder is not None:
        path = Path(folder, "whole.keras")
        found.save(path)
        loaded, outputs = keras.saving.load_model(path), found.predict(batch[0])
        ours = keras.tree.flatten(loaded(batch[0]))
        for a, b in zip(ours, keras.tree.flatten(outputs), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
        assert int(loaded.optimizer.iterations) == 9
    found.fit(4)
    same(found, expected, batch[0], near)
    held, n = found.replica.shards.held(), found.strategy.holding.size
    item = found.replica.dtype.itemsize
    share = n * item / team.size + 100 * item
    assert held["gradients"] <= share
    assert held["weights"] <= (share if stage == 3 else n * item)
    assert found.replica.shards._in_use == 0 and len(found.replica.stages) >= 2


def two(folder):
    team = Team()
    trains(gpt, 3, team, 1e-5, clip_norm=0.3)
    trains(convolutional, 2, team, 1e-5, folder)
    trains(several, 3, team, 1e-5, folder)
    trains(unusual, 3, team, 1e-5)
    expected, batch = trainer(by_batch, 1, team)
    expected.fit(3)
    for number, stage in enumerate((3, 1, 2), start=1):  # a checkpoint goes on under any stage
        found, _ = trainer(by_batch, stage, team, checkpoint=f"{folder}/run")
        assert found.resume() == (number > 1)
        found.fit_to(number)
    same(found, expected, batch[0], 1e-5)


def test_two_ranks(on_ranks, tmp_path):
    on_ranks(2, two, str(tmp_path), keras=True)


def three(folder):
    with in_float64():
        trains(gpt, 2, Team(), 1e-12, clip_norm=0.3)
        trains(convolutional, 3, Team(), 1e-12, folder)
        trains(by_batch, 3, Team(), 1e-12, serial=False)


@pytest.mark.thorough
def test_three_ranks_to_twelve_digits(on_ranks, tmp_path):
    on_ranks(3, three, str(tmp_path), keras=True)


def after(*more, kind=None, **options):
    """A small model with these layers, compiled."""
    chain = [keras.Input((4,)), *more, layers.Dense(1, name="last")]
    model = (kind or keras.Sequential)(chain)
    model.compile(**{"loss": "mse", **options})
    return model


def synchronised():
    from tutorial_dl.layers import convert

    return convert(after(layers.BatchNormalization()))


def with_hidden_weights():
    first = layers.Dense(4, name="first", use_bias=False)
    x = keras.Input((4,))
    y = layers.Dense(4, name="second")(first(x))
    y = layers.Lambda(lambda z: keras.ops.matmul(z, first.kernel))(y)
    model = keras.Model(x, layers.Dense(1)(y))
    model.compile(loss="mse")
    return model


def adding_a_loss():
    class Adds(layers.Layer):
        makes_no_mask = True

        def call(self, x):
            self.add_loss(keras.ops.mean(x))
            return x

    return after(Adds(name="adds"))


def with_own_layer():
    class Mine(layers.Layer):
        def call(self, x):
            return x

    return after(Mine(name="mine"))


def with_a_dictionary():
    x = keras.Input((4,), name="x")
    model = keras.Model({"x": x}, layers.Dense(1)(x))
    model.compile(loss="mse")
    return model


def with_own_test_step():
    class Own(keras.Sequential):
        def test_step(self, batch):
            return super().test_step(batch)

    return after(kind=Own)


def test_what_needs_the_whole_model_is_refused_by_name():
    regular = keras.regularizers.L2(0.1)
    for words, build in {
        "it has regularisers or add_loss; use weight decay": (
            lambda: after(layers.Dense(3, kernel_regularizer=regular))),
        "layer 'active': it has a regulariser of its outputs": (
            lambda: after(layers.Dense(3, activity_regularizer=regular, name="active"))),
        "its weights have constraints": (
            lambda: after(layers.Dense(3, kernel_constraint="non_neg"))),
        "layer 'half': it computes in bfloat16, its weights are float32": (
            lambda: after(layers.Dense(3, dtype="mixed_bfloat16", name="half"))),
        "it has losses or metrics of your own, .*; use Keras's own, or shard 1": (
            lambda: after(metrics=[lambda y, z: y[:, 0]])),
        "weights 'shared/kernel' are used by layers 'shared' and 'shared': shard 3 needs": (
            with_shared_weights),
        "weights '.*' are used by a layer that does not have them, among second": (
            with_hidden_weights),
        "normalisation: use shard 1": synchronised,
        "it has its own test_step, which may need the whole model; use shard 1": with_own_test_step,
        "layer 'mine': Mine is no layer of Keras and may make a mask": with_own_layer,
        "it takes inputs as a list, not as a dictionary": with_a_dictionary,
        "layer 'adds' calls add_loss, which parts of a model lose: .* --shard": adding_a_loss,
    }.items():  # fmt: skip
        x = np.ones((2, 4), np.float32)
        with pytest.raises(ValueError, match=words) as error:
            ShardedReplica(build(), Team(), 3).compute_gradient((x, x[:, :1]))
        assert "\n" not in str(error.value)


def test_an_optimizer_of_keras_is_refused():
    team, theirs = Team(), keras.optimizers.Adam(amsgrad=True)
    x = np.ones((8, 4), np.float32)
    for model, asked in (after(), theirs), (after(optimizer=theirs), None):
        with pytest.raises(ValueError, match="shard 3: this needs an optimizer with a kernel"):
            Trainer(ShardedReplica(model, team), (x, x[:, :1]), "synchronous", asked)


def test_batches_that_ranks_can_not_share_are_refused():
    x = np.ones((4, 4), np.float32)
    weighted = after(loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    with pytest.raises(ValueError, match="weights of samples is no mean over samples"):
        ShardedReplica(weighted, Team()).try_out((x, x[:, :1], x[:, 0]), shared=True)
    batch = layers.BatchNormalization(synchronized=True, name="batch")
    with pytest.raises(
        ValueError, match=r"'batch' has synchronized=True, which only tf.distribute"
    ):
        ShardedReplica(after(batch), Team()).try_out((x, x[:, :1]), shared=True)


def test_callbacks_of_keras_that_need_whole_weights_are_refused(tmp_path):
    x, team, of = np.ones((8, 4), np.float32), Team(), keras.callbacks
    writes = of.ModelCheckpoint(tmp_path / "model.keras")
    draws = of.TensorBoard(tmp_path / "board", histogram_freq=1)
    restores = of.EarlyStopping("loss", restore_best_weights=True)
    for stage, callback, words in (
        (3, writes, r"ModelCheckpoint would write zeros, .* use callbacks.SaveBest, or shard 2"),
        (3, draws, "TensorBoard would write zeros, as with shard 3"),
        (3, restores, r"\(shard 3\): use callbacks.EarlyStopping\(restore_best=True\)"),
        (2, restores, r"\(shard 2\): use callbacks.EarlyStopping\(restore_best=True\)"),
        (2, writes, None),
    ):
        one, how = ShardedReplica(after(), team, stage), {"callbacks": [callback]}
        found = Trainer(one, (x, x[:, :1]), "synchronous", progress=False, **how)
        if words is None:
            found.fit(1)
            continue
        with pytest.raises(ValueError, match=words) as error:
            found.fit(1)
        team.recover()
        assert "\n" not in str(error.value)
    saved = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(saved(x), one.predict(x))


def test_weights_that_tensorflow_assigned_are_noticed():
    x = np.ones((4, 4), np.float32)
    for stage in (2, 3):
        model = after()
        one = ShardedReplica(model, Team(), stage)
        one.compute_gradient((x, x[:, :1]))
        model.set_weights([np.ones((4, 1)), np.zeros(1)])
        with pytest.raises(RuntimeError, match=r"'.*' no longer lie in the replica's parameters"):
            for _ in range(2):  # one variable in each step
                one.compute_gradient((x, x[:, :1]))
