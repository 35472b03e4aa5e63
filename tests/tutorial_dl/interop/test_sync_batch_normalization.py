"""Batch normalisation over ranks, compared with Keras's own on the concatenated batch."""

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("keras")

CLASSES = 3


def share(samples, shares, rank):
    """The slice of the samples of `rank`."""
    ends = np.cumsum([0, *shares])
    assert ends[-1] == samples
    return slice(ends[rank], ends[rank + 1])


def normalised(layer, x, dy, mask=None):
    """y, and the gradients of sum(y dy) with respect to x, gamma and beta."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        x = tf.constant(x)
        tape.watch(x)
        y = layer(x, training=True, **({} if mask is None else {"mask": tf.constant(mask)}))
        total = tf.reduce_sum(y * dy)
    weights = [v.value for v in layer.trainable_weights]
    return [np.array(part) for part in (y, *tape.gradient(total, [x, *weights]))]


CASES = {  # shape of the batch, axis, which elements are masked, shares of 3 ranks
    "even": ((9, 5), -1, False, (3, 3, 3)),
    "ragged images": ((9, 4, 4, 5), -1, False, (5, 1, 3)),
    "a rank without samples": ((9, 4, 5), 1, False, (5, 0, 4)),
    "one rank has all": ((9, 5), -1, False, (0, 0, 9)),
    "masked": ((9, 6, 5), -1, True, (4, 2, 3)),
    "one rank all masked": ((9, 6, 5), -1, True, (4, 2, 3)),
}


def layers_are_equal(team, dtype):
    """Forward and backward agree, eagerly and in a graph, as the module's docstring promises."""
    import keras
    import tensorflow as tf

    from tutorial_dl.layers import SyncBatchNormalization

    # With a mask, Keras adds this epsilon to the number of elements that the mask leaves.
    keras.config.set_epsilon(1e-15)
    random = np.random.default_rng(6)
    error = 1e-12 if dtype == "float64" else 2e-6
    for name, (shape, axis, masked, shares) in CASES.items():
        shares = shares if team.size == 3 else (shares[0], shares[1] + shares[2])
        # Far from zero, E[x^2] - mean^2 loses digits. (So does Keras's x - mean.)
        x = (random.normal(size=shape) + 30).astype(dtype)
        dy = random.normal(size=shape).astype(dtype)
        mask = random.random(shape[:-1]) < 0.6 if masked else None
        mine = share(shape[0], shares, team.rank)
        if name == "one rank all masked":
            mask[share(shape[0], shares, 0)] = False
        gamma, beta = (random.normal(size=shape[axis]).astype(dtype) for _ in range(2))
        options = dict(axis=axis, momentum=0.8, epsilon=1e-4, dtype=dtype)
        plain = keras.layers.BatchNormalization(**options)
        ours = SyncBatchNormalization(team, **options)
        for layer in (plain, ours):
            layer.build(shape)
            layer.gamma.assign(gamma), layer.beta.assign(beta)
        expected = normalised(plain, x, dy, mask)
        # What is averaged changes one factor, so one graph of that is enough, and two in float32.
        ways = [(False, "samples"), (False, "ranks")]
        ways += [(True, "samples")] * (dtype == "float64" or name in ("ragged images", "masked"))
        ways += [(True, "ranks")] * (name == "ragged images")
        for graph, average in ways:
            # This rank's loss is a mean over its samples, and averages over ranks weight it so.
            weight = (mine.stop - mine.start) / shape[0] if average == "samples" else 1 / team.size
            of_mine = dy[mine] / max(weight, 1e-9)
            ours.average = average
            call = tf.function(normalised_tensors) if graph else normalised
            own_mask = None if mask is None else mask[mine]
            found = [np.array(p) for p in call(ours, x[mine], of_mine.astype(dtype), own_mask)]
            y, dx = found[0], weight * found[1]
            scale = np.abs(expected[1]).max()
            np.testing.assert_allclose(y, expected[0][mine], atol=error * 30, err_msg=name)
            np.testing.assert_allclose(
                dx / scale, expected[1][mine] / scale, atol=error * 30, err_msg=name
            )
            for a, b in zip(found[2:], expected[2:], strict=True):
                total = team.allreduce(weight * a.astype("f8"))
                np.testing.assert_allclose(total, b, rtol=error * 30, atol=error * 300)
            if (graph, average) == ways[0]:
                for a, b in zip(ours.non_trainable_weights, plain.non_trainable_weights,
                                strict=True):  # fmt: skip
                    np.testing.assert_allclose(a, b, rtol=error * 30, atol=error)
        statistics = np.concatenate([np.array(v) for v in ours.non_trainable_weights])
        assert np.ptp(team.allgather(statistics), axis=0).max() == 0
    keras.config.set_epsilon(1e-7)


def normalised_tensors(layer, x, dy, mask):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x := tf.identity(x))
        y = layer(x, training=True, **({} if mask is None else {"mask": mask}))
        total = tf.reduce_sum(y * dy)
    return y, *tape.gradient(total, [x, *(v.value for v in layer.trainable_weights)])


def network():
    """A nested network with two independent branches, and layers with all options."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(4)
    inner = keras.Sequential(
        [keras.Input((6,)), layers.Dense(5), layers.BatchNormalization(momentum=0.7, name="inner")],
        name="nested",
    )
    x = inputs = keras.Input((6, 6, 1))
    x = layers.Conv2D(4, 3, activation="relu")(x)
    a = layers.BatchNormalization(axis=1, epsilon=1e-2, name="rows")(x)
    b = layers.BatchNormalization(center=False, scale=False, name="bare")(x)
    a = inner(layers.Dense(6, "tanh")(layers.GlobalAveragePooling2D()(a)))
    b = layers.BatchNormalization(name="last")(layers.Dense(5)(layers.Flatten()(b)))
    x = layers.Concatenate()([a, b, layers.Dropout(0.0)(b)])
    model = keras.Model(inputs, layers.Dense(CLASSES, "softmax")(x))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


SAMPLES, BATCH = 31, 10  # the last round has one sample, so only one rank has any


def images(dtype="float32"):
    from tutorial_dl import data

    random = np.random.default_rng(2)
    x = random.normal(1, 2, (SAMPLES, 6, 6, 1)).astype(dtype)
    part = data.Data.of(x, random.integers(0, CLASSES, SAMPLES))
    return data.Dataset("random", part, part, CLASSES)


def train(model, strategy, dtype):
    from tutorial_dl import Trainer, optimizers

    rule = optimizers.get("sgd", 0.05)
    trainer = Trainer(model, images(dtype), strategy, rule, batch_size=BATCH, seed=3,
                      progress=False)  # fmt: skip
    trainer.fit(3)
    return trainer


def outcome(trainer):
    """Parameters, moving statistics, and the validation loss of each epoch."""
    losses = np.array(trainer.history.column("val_loss"))
    return [trainer.replica.parameters.copy(), trainer.replica.state.copy(), losses]


def networks_are_equal(everybody, teams_of):
    """Networks trained by p ranks and by one have the same weights and moving statistics.

    everybody: the team of all ranks; its rank 0 trains alone
    teams_of: teams by precision, so that not every team trains in both
    """
    import keras

    from tutorial_dl import strategies
    from tutorial_dl.layers import convert

    for dtype, limit in (("float32", 1e-5), ("float64", 1e-12)):
        keras.config.set_floatx(dtype), keras.config.set_dtype_policy(dtype)
        alone = None
        for team in teams_of[dtype]:
            model = convert(network(), team)
            together = train(model, strategies.Synchronous(team), dtype)
            found = outcome(together)
            if alone is None:
                alone = [np.empty_like(part) for part in found]
                if everybody.rank == 0:
                    plain = network()
                    plain.run_eagerly = True  # a graph takes longer to make
                    alone = outcome(train(plain, strategies.Serial(), dtype))
                alone = [everybody.broadcast(part) for part in alone]
            for what, mine, serial in zip(("parameters", "state"), found, alone, strict=False):
                error = np.abs(mine - serial).max()
                assert error <= limit, f"{what} {dtype} on {team.size}: {error}"
            np.testing.assert_allclose(found[2], alone[2], rtol=1e-5)
            # If no rank has samples, statistics do not move and there is no gradient.
            x, y = images(dtype).train.take(slice(0, 0))
            assert together.replica.compute_gradient((x, y)) == (0, 0)
            assert not together.replica.gradient.any()
            # Statistics are equal on all ranks without averaging, also if a rank has no samples.
            x, y = images(dtype).train.take(slice(0, team.rank))
            together.replica.compute_gradient((x, y))
            state = team.allgather(together.replica.state.copy())
            assert np.isfinite(state).all() and np.ptp(state, axis=0).max() == 0
    keras.config.set_floatx("float32"), keras.config.set_dtype_policy("float32")


def without_samples(team):
    """A rank without samples takes part in collectives, and its own statistics do not change."""
    import keras

    from tutorial_dl import replica
    from tutorial_dl.layers import SyncBatchNormalization

    inputs = keras.Input((4,))
    x = keras.layers.Dense(3, kernel_regularizer="l2")(inputs)
    x = SyncBatchNormalization(team, momentum=0.5, name="common")(x)
    x = keras.layers.BatchNormalization(momentum=0.5, name="own")(x)
    x = SyncBatchNormalization(team, name="behind")(keras.layers.Dense(3)(x))
    model = keras.Model(inputs, x)
    model.compile(loss="mse")
    r = replica.of(model)
    before = {name: model.get_layer(name).get_weights() for name in ("common", "own", "behind")}
    samples = 5 * (team.rank != 1)
    found = r.compute_gradient((np.ones((samples, 4)), np.ones((samples, 3))))
    for name, weights in before.items():
        moved = not np.array_equal(weights[2:], model.get_layer(name).get_weights()[2:])
        assert moved == (name != "own" or team.rank != 1), name
    assert found[1] == samples
    if team.rank == 1:
        assert found[0] == 0 and not r.gradient.any()
    else:
        assert np.isfinite(r.gradient).all() and r.gradient.any()
    collectives = [op for f, *_ in r.graphs.functions.values() for op in f.graph.get_operations()
                   if op.type == "PyFunc"]  # fmt: skip
    assert len(collectives) == 4  # two layers, forward and backward, in sequence
    assert all(a in b.control_inputs for a, b in itertools.pairwise(collectives))


def failing_rank(team):
    """A rank fails in the middle of its step: the others soon raise an error that says why."""
    import tensorflow as tf
    from mpi4py import MPI

    from numba_kernels import PeerError
    from tutorial_dl import replica
    from tutorial_dl.layers import SyncBatchNormalization, convert
    from tutorial_dl.replica import collective_layers

    r = replica.of(convert(plain_model(), team))
    x, y = np.ones((4, 4)), np.ones((4, 2))
    r.compute_gradient((x, y))
    MPI.COMM_WORLD.Barrier()  # no rank is still in a collective when another one fails
    if team.rank == 1:
        team.abort(ValueError("the dog ate it"))
    else:
        with pytest.raises(PeerError, match="rank 1 failed: ValueError: the dog ate it"):
            r.compute_gradient((x, y))
    team.recover()
    collective_layers.cause(RuntimeError())  # asking for the cause clears it, as training does
    layer = SyncBatchNormalization(team)
    layer.build((None, 6))
    for how in (lambda x: layer(x, training=True), tf.function(lambda x: layer(x, training=True))):
        MPI.COMM_WORLD.Barrier()
        if team.rank == 1:
            team.abort(ValueError("the dog ate it"))
        else:
            with pytest.raises((RuntimeError, tf.errors.OpError), match="the dog ate it"):
                how(tf.ones((3, 6)))
        team.recover()
    collective_layers.cause(RuntimeError())
    r.compute_gradient((x, y))


def one_layer():
    from tutorial_dl import Team

    layers_are_equal(Team(), "float64")


def test_a_layer_on_three_ranks(on_ranks):
    on_ranks(3, one_layer, keras=True)


def each_rank(everything):
    """everything: both precisions on all ranks and on two of them, as `make soak` does."""
    from tutorial_dl import Team

    everybody = Team()
    pair = everybody.split(int(everybody.rank < 2))  # two ranks, and one
    if pair.size == 2:
        layers_are_equal(pair, "float32")
    if everything:
        layers_are_equal(everybody, "float32")
        networks_are_equal(everybody, {"float32": [everybody], "float64": [pair]})
    networks_are_equal(everybody, {"float32": [pair], "float64": [everybody]})
    without_samples(everybody)
    failing_rank(everybody)


@pytest.mark.thorough
def test_on_ranks(on_ranks):
    on_ranks(3, each_rank, False, timeout=240, keras=True)


def plain_model():
    import keras

    inputs = keras.Input((4,), name="x")
    x = keras.layers.BatchNormalization(momentum=0.3, epsilon=0.2, name="outer")(inputs)
    x = keras.layers.Dense(2)(keras.layers.BatchNormalization(scale=False, axis=1)(x))
    model = keras.Model(inputs, x)
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.1))
    return model


@pytest.mark.thorough
def test_convert_keeps_all_but_how_statistics_are_computed(tmp_path):
    """One process gives plain batch normalisation, also in Keras's fit and after a reload."""
    import keras

    from tutorial_dl.layers import SyncBatchNormalization, convert

    random = np.random.default_rng(1)
    x, y = random.normal(3, 2, (20, 4)), random.normal(size=(20, 2))
    plain = plain_model()
    model = plain_model()
    model.set_weights(plain.get_weights())
    model.train_on_batch(x, y), plain.train_on_batch(x, y)  # with the original layers
    names = [v.path for v in model.weights]
    assert convert(model) is model
    assert [v.path for v in model.weights] == names
    ours = [a for a in model.layers if isinstance(a, SyncBatchNormalization)]
    theirs = [a for a in plain.layers if isinstance(a, keras.layers.BatchNormalization)]
    for a, b in zip(ours, theirs, strict=True):
        config = {**a.get_config()}
        assert config.pop("average") == "samples"
        assert {**config, "name": ""} == {**b.get_config(), "name": ""}
    for one in (model, plain):
        one.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.get_layer("outer"), SyncBatchNormalization)
    assert loaded.get_layer("outer").team is None
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    assert np.isfinite(loaded.train_on_batch(x, y))


def test_what_can_not_be_converted_is_named():
    import keras

    from tutorial_dl.layers import SyncBatchNormalization, convert

    class Own(keras.layers.BatchNormalization):
        pass

    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), Own(name="o")])
    with pytest.raises(ValueError, match="layer 'o' is a Own, a subclass that can't be converted"):
        convert(model)
    assert type(model.layers[0]) is keras.layers.BatchNormalization
    for call in (lambda: SyncBatchNormalization(average="x"), lambda: convert(model, average="x")):
        with pytest.raises(ValueError, match="average must be samples or ranks, got 'x'"):
            call()


class Pair:
    """A team of two ranks as seen by one of them; the other one always has the same numbers."""

    size = 2

    def __init__(self):
        self.calls = 0

    def allreduce(self, x):
        self.calls += 1
        return 2 * x


def test_each_training_decides_which_ranks_normalise_together():
    """The last team that trains counts, except for a layer that was given its own team."""
    from tutorial_dl import replica
    from tutorial_dl.layers import convert

    own, first, second = teams = [Pair() for _ in range(3)]
    model = convert(plain_model())
    model.get_layer("outer").team = own
    batch = np.ones((3, 4)), np.ones((3, 2))

    def calls(of):
        before = [team.calls for team in teams]
        of.compute_gradient(batch)
        return [team.calls - b for team, b in zip(teams, before, strict=True)]

    # An allreduce of each layer on the way forward, and of the inner layer on the way backward.
    for _ in range(2):  # a second training of the same model has another replica
        trained = replica.of(model)
        trained.use_team(first)
        assert calls(trained) == [1, 2, 0]
        trained.use_team(second)
        assert calls(trained) == [1, 0, 2]
    assert model.get_layer("outer").team is own
