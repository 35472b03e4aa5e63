"""KerasReplica against Keras itself, numpy's dense network and finite differences."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from numba_kernels.window import aligned
from tutorial_dl import data, replica
from tutorial_dl.replica import DenseReplica, KerasReplica
from tutorial_dl.replica.base import Replica
from tutorial_dl.replica.keras_tensorflow import keras, tf

layers = keras.layers
RANDOM = np.random.default_rng(11)
IMAGES = RANDOM.standard_normal((13, 6, 6, 1)).astype(np.float32)
WORDS = RANDOM.integers(0, 20, (13, 5))
LABELS = RANDOM.integers(0, 3, 13)
VALUES = RANDOM.standard_normal((13, 2)).astype(np.float32)


def compiled(inputs, outputs, **options):
    model = keras.Model(inputs, outputs)
    options = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **options}
    model.compile(**options)
    return model


def convolutional(**options):
    x = inputs = keras.Input((6, 6, 1))
    x = layers.Conv2D(4, 3, activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Dense(3, "softmax")(layers.Flatten()(x))
    return compiled(inputs, x, **options)


def normalised():
    x = inputs = keras.Input((6, 6, 1))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3)(x))
    x = layers.Dense(3, "softmax")(layers.GlobalAveragePooling2D()(x))
    return compiled(inputs, x)


def embedded():
    inputs = keras.Input((5,), dtype="int64")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(inputs))
    return compiled(inputs, layers.Dense(3, "softmax")(x))


def two_inputs():
    image, words = keras.Input((6, 6, 1), name="image"), keras.Input((5,), name="words")
    x = layers.Concatenate()([layers.Flatten()(image), layers.Dense(4, "tanh")(words)])
    return compiled([image, words], layers.Dense(2)(x), loss="mse", metrics=["mae"])


def dictionary():
    image, words = keras.Input((6, 6, 1), name="image"), keras.Input((5,), name="words")
    x = layers.Concatenate()([layers.Flatten()(image), layers.Dense(4, "tanh")(words)])
    return compiled({"image": image, "words": words}, layers.Dense(2)(x), loss="mse", metrics=[])


def two_outputs():
    x = inputs = keras.Input((6, 6, 1))
    x = layers.Dense(4, "tanh")(layers.Flatten()(x))
    outputs = {"kind": layers.Dense(3, "softmax")(x), "place": layers.Dense(2)(x)}
    return compiled(
        inputs, outputs, metrics=None,
        loss={"kind": "sparse_categorical_crossentropy", "place": "mse"},
    )  # fmt: skip


class Penalised(layers.Layer):
    """Adds a loss from inside, and has a scalar weight."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        self.add_loss(0.3 * keras.ops.square(self.scale - 3))
        return x * self.scale


def regularised():
    x = inputs = keras.Input((6, 6, 1))
    x = layers.Dense(4, "tanh", kernel_regularizer=keras.regularizers.L2(0.1))(layers.Flatten()(x))
    return compiled(inputs, layers.Dense(3, "softmax")(Penalised()(x)))


WORD_FLOATS = WORDS.astype(np.float32) / 20
MODELS = {
    "convolutional": (convolutional, (IMAGES, LABELS)),
    "normalised": (normalised, (IMAGES, LABELS)),
    "embedded": (embedded, (WORDS, LABELS)),
    "two_inputs": (two_inputs, ((IMAGES, WORD_FLOATS), VALUES)),
    "dictionary": (dictionary, ({"image": IMAGES, "words": WORD_FLOATS}, VALUES)),
    "two_outputs": (two_outputs, (IMAGES, {"kind": LABELS, "place": VALUES})),
    "regularised": (regularised, (IMAGES, LABELS)),
}


def build(name):
    keras.utils.set_random_seed(5)
    make, batch = MODELS[name]
    return make(), batch


def part(batch, samples):
    return data.Data(*batch).take(samples)


def plain_gradient(model, batch):
    """What Keras's own train_step takes: the loss and each layer's gradient."""
    x, y = keras.tree.map_structure(tf.constant, batch[0]), batch[1]
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    return float(loss), [tf.convert_to_tensor(g).numpy() for g in gradients]


def addresses(model):
    return [
        np.from_dlpack(v.value.read_value()).__array_interface__["data"][0]
        for v in model.trainable_variables
    ]


@pytest.mark.parametrize("name", MODELS)
def test_gradient_is_keras_s(name):
    expected_loss, expected = plain_gradient(*build(name))
    model, batch = build(name)
    r = replica.of(model)
    assert isinstance(r, KerasReplica) and isinstance(r, Replica)
    loss, samples = r.compute_gradient(batch)
    assert samples == 13 and loss == pytest.approx(expected_loss, rel=1e-6)
    assert [s.shape for s in r.segments] == [g.shape for g in expected]
    for segment, g in zip(r.segments, expected, strict=True):
        np.testing.assert_allclose(segment.of(r.gradient), g, rtol=1e-5, atol=1e-6)
        assert np.abs(g).max() > 0


@pytest.mark.parametrize("name", MODELS)
def test_changing_parameters_changes_the_network(name):
    """An update by our hands gives the weights and the loss of Keras's own SGD step."""
    theirs, batch = build(name)
    theirs.optimizer = keras.optimizers.SGD(0.1)
    theirs.train_on_batch(*batch)
    model, _ = build(name)
    r = KerasReplica(model)
    before = r.evaluate([batch])["loss"]
    r.compute_gradient(batch)
    r.parameters -= np.float32(0.1) * r.gradient
    for ours, own in zip(model.trainable_weights, theirs.trainable_weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), own.numpy(), rtol=1e-5, atol=1e-6)
    after = r.evaluate([batch])["loss"]
    assert after != before
    assert after == pytest.approx(theirs.evaluate(*batch, verbose=0, return_dict=True)["loss"],
                                  rel=1e-5)  # fmt: skip
    # And the next gradient, through the function traced before the update, is the next one.
    expected_loss, _ = plain_gradient(theirs, batch)
    assert r.compute_gradient(batch)[0] == pytest.approx(expected_loss, rel=1e-5)


@pytest.mark.parametrize("name", [n for n in MODELS if n != "normalised"])
@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_weighted_average_of_shares_is_the_whole_batch(name, ranks):
    """Ragged shares and empty ones, regularisers included. (Batch statistics are a share's own.)"""
    model, batch = build(name)
    r = KerasReplica(model)
    loss, _ = r.compute_gradient(batch)
    whole, average, mean = r.gradient.copy(), np.zeros_like(r.gradient), 0.0
    for rank in range(ranks):
        r.gradient[:] = np.nan
        share_loss, samples = r.compute_gradient(part(batch, data.share(13, rank, ranks)))
        average += samples / 13 * np.where(samples, r.gradient, 0)
        if not samples:
            assert share_loss == 0 and not r.gradient[: r.segments[0].size].any()
        mean += samples / 13 * share_loss
    used = np.concatenate([s.of(np.arange(len(whole))).ravel() for s in r.segments])
    np.testing.assert_allclose(average[used], whole[used], rtol=1e-4, atol=2e-6)
    assert mean == pytest.approx(loss, rel=1e-5)


def test_sizes_of_batches_do_not_retrace():
    model, batch = build("convolutional")
    traced = []
    call = model.call
    model.call = lambda *args, **kwargs: (traced.append(1), call(*args, **kwargs))[1]
    r = KerasReplica(model)
    r.compute_gradient(batch)
    r.evaluate([batch])
    once = len(traced)
    for size in (1, 4, 12):
        r.compute_gradient(part(batch, slice(0, size)))
        r.evaluate([part(batch, slice(0, size))])
    assert once and len(traced) == once


@pytest.fixture
def precision(request):
    """Keras's default precision, "float32" or "float64"."""
    keras.config.set_floatx(request.param)  # of losses
    keras.config.set_dtype_policy(request.param)  # of layers
    yield request.param
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_gradient_in_float64_is_the_slope_of_the_loss(precision):
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((4,))
    x = layers.Dense(5, "tanh")(x)
    model = compiled(inputs, layers.Dense(2)(x), loss="mse", metrics=[])
    batch = RANDOM.standard_normal((7, 4)), RANDOM.standard_normal((7, 2))
    r = KerasReplica(model)
    assert r.parameters.dtype == r.gradient.dtype == np.float64
    r.compute_gradient(batch)
    gradient = r.gradient.copy()
    for segment in r.segments:
        for i in range(segment.offset, segment.offset + segment.size):
            at, losses = r.parameters[i], []
            for step in (1e-6, -1e-6):
                r.parameters[i] = at + step
                losses.append(r.compute_gradient(batch)[0])
            r.parameters[i] = at
            measured = (losses[0] - losses[1]) / 2e-6
            assert gradient[i] == pytest.approx(measured, rel=1e-6, abs=2e-9)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("ours", ["cross_entropy", "mse"])
@pytest.mark.parametrize("precision", ["float32", "float64"], indirect=True)
def test_the_dense_network_in_numpy_is_keras_s(activation, ours, precision):
    """Two implementations, the same weights: the same loss, gradients and accuracy."""
    own = DenseReplica((36, 8, 5, 3), activation, ours, seed=3, dtype=precision)
    own.parameters += np.random.default_rng(0).uniform(-0.2, 0.2, len(own.parameters))
    x = inputs = keras.Input((6, 6, 1))
    x = layers.Flatten()(x)
    for size in (8, 5):
        x = layers.Dense(size, activation)(x)
    x = layers.Dense(3)(x)
    if ours == "mse":
        options = {"loss": "mse", "metrics": []}
    else:
        options = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    r = KerasReplica(compiled(inputs, x, **options))
    for to, value in zip(r.segments, own.weights, strict=True):
        to.of(r.parameters)[...] = value
    y = LABELS if ours == "cross_entropy" else np.eye(3, dtype=precision)[LABELS]
    batch = IMAGES.astype(precision), y
    error = 1e-12 if precision == "float64" else 2e-6
    loss, expected = r.compute_gradient(batch)[0], own.compute_gradient(batch)[0]
    assert loss == pytest.approx(expected, rel=error)
    for to, value in zip(r.segments, own.weights_gradient, strict=True):
        np.testing.assert_allclose(to.of(r.gradient), value, rtol=0, atol=error)
    metrics, expected = own.evaluate([batch]), r.evaluate([batch])
    assert metrics.keys() == expected.keys()
    for key in metrics:
        assert metrics[key] == pytest.approx(expected[key], rel=1e-6)


# Metrics


@pytest.mark.parametrize("name", MODELS)
def test_evaluate_over_ragged_batches_is_keras_s_on_the_whole(name):
    model, batch = build(name)
    expected = model.evaluate(*batch, batch_size=13, verbose=0, return_dict=True)
    r = KerasReplica(model)
    pieces = [part(batch, s) for s in (slice(0, 6), slice(6, 6), slice(6, 7), slice(7, 13))]
    metrics = r.evaluate(iter(pieces))
    assert metrics.pop("samples") == 13
    assert metrics.keys() == expected.keys()
    for key, value in expected.items():
        assert metrics[key] == pytest.approx(value, rel=1e-5)
    again = r.evaluate(pieces[-1:])  # starts anew: nothing of the 13 is left in it
    assert again["samples"] == 6 and again["loss"] != metrics["loss"]


def test_evaluate_of_nothing_has_the_same_metrics():
    """A rank without samples must still be able to take part in an average over ranks."""
    model, batch = build("convolutional")
    r = KerasReplica(model)
    assert r.evaluate([]) == {"loss": 0, "samples": 0}
    assert r.evaluate([part(batch, slice(0, 0))]) == {"loss": 0, "accuracy": 0, "samples": 0}
    r.evaluate([batch])
    assert r.evaluate([]) == {"loss": 0, "accuracy": 0, "samples": 0}
    model, batch = build("convolutional")
    r = KerasReplica(model)
    r.compute_gradient(batch)
    assert r.evaluate([]) == {"loss": 0, "accuracy": 0, "samples": 0}


# State


def test_state_is_the_moving_statistics():
    theirs, batch = build("normalised")
    theirs.optimizer = keras.optimizers.SGD(0.1)
    theirs.train_on_batch(*batch)
    model, _ = build("normalised")
    r = KerasReplica(model)
    np.testing.assert_array_equal(r.state, [0, 0, 0, 0, 1, 1, 1, 1])  # mean 0, variance 1
    r.compute_gradient(batch)
    expected = np.concatenate([v.numpy() for v in theirs.non_trainable_weights])
    np.testing.assert_allclose(r.state, expected, rtol=1e-5, atol=1e-7)
    moved = r.state
    r.compute_gradient(part(batch, slice(0, 0)))
    np.testing.assert_array_equal(r.state, moved)  # no samples, no statistics
    r.evaluate([batch])
    np.testing.assert_array_equal(r.state, moved)  # nor does evaluation move them
    r.state = moved / 2
    np.testing.assert_array_equal(r.state, moved / 2)
    bn = next(v for v in model.non_trainable_weights if "moving_mean" in v.path)
    np.testing.assert_array_equal(bn.numpy(), moved[:4] / 2)
    with pytest.raises(ValueError, match="read-only"):
        r.state[:] = 0  # would change a copy: no effect, no error, were it not for this
    with pytest.raises(ValueError, match=r"state of shape \(7,\): expected \(8,\)"):
        r.state = np.zeros(7)


def test_seeds_and_counters_are_no_state():
    x = inputs = keras.Input((4,))
    model = compiled(inputs, layers.Dense(3, "softmax")(layers.Dropout(0.5)(x)))
    r = KerasReplica(model)
    assert len(r.state) == 0
    x = np.ones((400, 4))
    first = r.compute_gradient((x, np.zeros(400, int)))[0]
    assert r.compute_gradient((x, np.zeros(400, int)))[0] != first  # dropout is on, and moves on


# Memory


@pytest.mark.parametrize("name", MODELS)
def test_weights_lie_in_parameters_wherever_those_are(name):
    model, batch = build(name)
    weights = [v.numpy() for v in model.trainable_variables]
    r = KerasReplica(model)
    for _ in range(3):
        start = r.parameters.ctypes.data
        assert addresses(model) == [start + 4 * s.offset for s in r.segments]
        assert all(s.offset % 16 == 0 for s in r.segments)
        for v, w, s in zip(model.trainable_variables, weights, r.segments, strict=True):
            np.testing.assert_array_equal(v.numpy(), w)
            np.testing.assert_array_equal(s.of(r.parameters), w)
        r.compute_gradient(batch)
        r.evaluate([batch])
        gradient = r.gradient.copy()
        n = len(r.parameters)
        new = aligned(n), aligned(n)
        r.place(*new)
        assert r.parameters is new[0] and r.gradient is new[1]
        np.testing.assert_array_equal(r.gradient, gradient)


def test_memory_lives_as_long_as_tensorflow_looks_at_it():
    """The vector goes out of our scope, other memory is taken: weights must not change."""
    model, _ = build("convolutional")
    r = KerasReplica(model)
    n = len(r.parameters)
    freed = []

    class Owner(np.ndarray):
        def __del__(self):
            freed.append(1)

    owner = Owner(4 * n + 64, np.uint8)
    start = -owner.ctypes.data % 64
    memory = np.ndarray((n,), np.float32, buffer=owner, offset=start)
    assert memory.base is owner
    weights = [v.numpy() for v in model.trainable_variables]
    r.place(memory, aligned(n))
    del memory, owner, r
    gc.collect()
    clutter = [np.full(4 * n + 64, 255, np.uint8) for _ in range(50)]
    assert not freed
    for v, w in zip(model.trainable_variables, weights, strict=True):
        np.testing.assert_array_equal(v.numpy(), w)
    model.predict(IMAGES, verbose=0)
    # And no longer: weights elsewhere, memory free.
    KerasReplica(model)
    gc.collect()
    assert len(clutter) == 50 and freed == [1]


def test_memory_left_behind_by_place_is_freed():
    model, batch = build("convolutional")
    r = KerasReplica(model)
    n = len(r.parameters)
    freed = []

    class Owner(np.ndarray):
        def __del__(self):
            freed.append(1)

    for step in range(4):
        owner = Owner(4 * n + 64, np.uint8)
        r.place(
            np.ndarray((n,), np.float32, buffer=owner, offset=-owner.ctypes.data % 64),
            aligned(n),
        )
        del owner
        r.compute_gradient(batch)
        gc.collect()
        assert len(freed) == step


@pytest.mark.parametrize("how", ["set_weights", "assign_add", "fit"])
def test_weights_assigned_by_tensorflow_are_noticed(how):
    model, batch = build("convolutional")
    r = KerasReplica(model)
    r.compute_gradient(batch)
    if how == "set_weights":
        model.set_weights([w + 1 for w in model.get_weights()])
    elif how == "assign_add":  # just one of the four
        model.trainable_weights[2].assign_add(np.ones(model.trainable_weights[2].shape))
    else:
        model.fit(*batch, verbose=0)
    with pytest.raises(RuntimeError, match="no longer lie in the replica's parameters") as error:
        for _ in range(len(r.segments)):
            r.compute_gradient(batch)
    assert "\n" not in str(error.value)
    with pytest.raises(RuntimeError, match="no longer lie"):
        r.place(aligned(len(r.parameters)), aligned(len(r.parameters)))
    # The remedy that the message names.
    weights = model.get_weights()
    again = KerasReplica(model)
    again.compute_gradient(batch)
    for ours, own in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(ours, own)


# Models that cannot be trained so


class OwnStep(keras.Model):
    def call(self, x):
        return x

    def train_step(self, x):
        return {}


def frozen():
    model = convolutional()
    model.trainable = False
    return model


def half():
    inputs = keras.Input((4,))
    return compiled(inputs, layers.Dense(3, "softmax", dtype="float16")(inputs))


def double_with_single_loss():
    inputs = keras.Input((4,))
    return compiled(inputs, layers.Dense(3, "softmax", dtype="float64")(inputs))


def summed():
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    return convolutional(loss=loss)


def not_compiled():
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(3)(inputs), name="bare")


def not_built():
    model = keras.Sequential([layers.Dense(3)], name="unbuilt")
    model.compile(loss="mse")
    return model


def own_step():
    inputs = keras.Input((4,))
    model = OwnStep(inputs, layers.Dense(3)(inputs))
    model.compile(loss="mse")
    return model


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (not_compiled, "model 'bare' is not compiled: call model.compile"),
        (not_built, "model 'unbuilt' has no weights yet: give it a keras.Input"),
        (own_step, "has a train_step of its own"),
        (frozen, "has no trainable weights"),
        (half, "trainable weights of dtype float16: expected all float32"),
        (double_with_single_loss, "weights of float64 but a loss of float32: .*set_floatx"),
        (summed, "reduction 'sum'.*'sum_over_batch_size'"),
    ],
)
def test_models_that_cannot_be_trained_are_refused_in_one_line(make, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        replica.of(make())
    assert "\n" not in str(error.value)


def test_only_keras_models():
    with pytest.raises(TypeError, match=r"a list is no keras\.Model"):
        KerasReplica([])


# TensorFlow's chatter. In processes of their own, for this one has long imported it.

IMPORT = (
    "import os, sys\n"
    "from tutorial_dl.replica.quiet import hide_tensorflow_chatter\n"
    "hide_tensorflow_chatter()\n"
    "{before}\n"
    "import keras, tensorflow as tf\n"
    "tf.constant(1) + 1; sys.stdout.write(tf.__version__)\n"
    "os.write(2, b'later: I0000 stays\\n')\n"
)


def run_import(before, **environment):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "", **environment}
    if not environment["TF_CPP_MIN_LOG_LEVEL"]:
        del environment["TF_CPP_MIN_LOG_LEVEL"]
    return subprocess.run(
        [sys.executable, "-c", IMPORT.format(before=before)],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip


def test_start_up_chatter_is_hidden_and_nothing_else():
    """What others write to stderr while TensorFlow is imported comes through, in order."""
    # Something that writes during TensorFlow's import: a hook on one of the modules it loads.
    before = (
        "class Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tensorflow.python':\n"
        "            os.write(2, b'a real error\\nE0000 00:00:1.5 7 x.cc:1] another\\n')\n"
        "sys.meta_path.insert(0, Hook())\n"
    )
    done = run_import(before)
    assert done.returncode == 0, done.stderr
    assert done.stdout == tf.__version__
    assert done.stderr.splitlines() == [
        "a real error",
        "E0000 00:00:1.5 7 x.cc:1] another",
        "later: I0000 stays",
    ]


def test_chatter_is_shown_to_who_asks_for_it():
    assert "absl::InitializeLog" in run_import("", TF_CPP_MIN_LOG_LEVEL="0").stderr


def test_a_failing_import_of_tensorflow_shows_its_error():
    """Not only the exception: also what was written to stderr on the way to it."""
    before = (
        "class Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tensorflow.python':\n"
        "            os.write(2, b'the reason\\n'); raise ImportError('broken')\n"
        "sys.meta_path.insert(0, Hook())\n"
    )
    done = run_import(before)
    assert done.returncode == 1
    assert "the reason" in done.stderr and "ImportError: broken" in done.stderr


def test_metrics_that_are_no_means_are_refused():
    model = convolutional(metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)])
    assert KerasReplica(model).evaluate([(IMAGES, LABELS)])["accuracy"] <= 1
    inputs = keras.Input((2,))
    one = compiled(inputs, layers.Dense(1, "sigmoid")(inputs), loss="mse", metrics=["AUC"])
    with pytest.raises(ValueError, match=r"metric 'AUC' is no mean over samples"):
        KerasReplica(one).evaluate([(VALUES, LABELS > 0)])
