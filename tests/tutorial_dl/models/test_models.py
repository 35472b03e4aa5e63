"""Models by name and users' own models: they are built correctly, and learn."""

import sys

import numpy as np
import pytest
from keras_networks import keras

from numba_kernels import optimizers
from tutorial_dl import data, models
from tutorial_dl.data import Batches, Data, Dataset
from tutorial_dl.replica import CurveReplica
from tutorial_dl.replica.base import Replica

pytestmark = pytest.mark.xdist_group("keras")

DIGITS, CURVE = data.digits(), data.curve(n=60, noise=0.05)
TEXT = data.text(length=16, characters=20_000)
TWO = {"a": np.ones((6, 3), np.float32), "b": np.ones((6, 2), np.float32)}
TWO_INPUTS = Dataset("two", Data.of(TWO, np.zeros(6)), Data.of(TWO, np.zeros(6)))
PARTICLES = np.ones((6, 2), np.float32), np.array([3, 11, 211, 2212, 22, 1000020040])
IDS = data.dataset_of((PARTICLES, PARTICLES))
EVENTS = data.events(1500, particles=25)
TWO_TARGETS = Dataset(
    "targets",
    Data.of(np.ones(3), (np.ones(3), np.ones(3))),
    Data.of(np.ones(3), (np.ones(3), np.ones(3))),
)


def train(replica, dataset, epochs, learning_rate, batch_size=32):
    adam = optimizers.Adam(learning_rate=learning_rate)
    state = adam.init(len(replica.parameters), replica.parameters.dtype)
    batches = Batches(dataset.train, batch_size)
    for epoch in range(epochs):
        for batch in batches.epoch(epoch):
            replica.compute_gradient(batch)
            adam.update(replica.parameters, replica.gradient, state)
    return replica.evaluate(Batches(dataset.validation, 100, shuffle=False).epoch())


@pytest.mark.parametrize(
    ("name", "dataset", "kind", "outputs"),
    [
        ("curve", CURVE, "CurveReplica", 4),
        ("softmax", DIGITS, "SoftmaxReplica", 10),
        ("dense", DIGITS, "DenseReplica", 10),
        ("dense", CURVE, "DenseReplica", 1),
        ("mlp", DIGITS, "KerasReplica", 10),
        ("mlp", CURVE, "KerasReplica", 1),
        ("cnn", DIGITS, "KerasReplica", 10),
        ("lstm", EVENTS, "KerasReplica", 3),
        ("transformer", TEXT, "TransformerReplica", 97),
        ("gpt", TEXT, "KerasReplica", 97),
    ],
)
def test_models_fit_their_dataset_and_depend_on_the_seed_alone(name, dataset, kind, outputs):
    first, again = (models.build(name, dataset, seed=3) for _ in range(2))
    assert type(first).__name__ == kind and isinstance(first, Replica)
    assert first.segments[-1].shape == (outputs,)
    np.testing.assert_array_equal(first.parameters, again.parameters)
    assert [s.name for s in first.segments] == [s.name for s in again.segments]
    assert len({s.name for s in first.segments}) == len(first.segments)
    loss, samples = first.compute_gradient(dataset.train.take(slice(0, 7)))
    assert np.isfinite(loss) and samples == 7
    if name != "curve":
        other = models.build(name, dataset, seed=4)
        kernels = [s for s in first.segments if len(s.shape) > 1 and "bias" not in s.name]
        for s in kernels:  # every layer has its own random weights
            assert not np.array_equal(s.view(first.parameters), s.view(other.parameters))


def test_seed_does_not_touch_the_global_generators():
    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    models.build("cnn", DIGITS, seed=9)
    models.build("dense", DIGITS, seed=9)
    assert np.random.random() == expected


def test_cnn_reads_digits():
    """At least 0.97 of the validation digits are right after a few epochs."""
    metrics = train(models.build("cnn", DIGITS, seed=0), DIGITS, epochs=6, learning_rate=0.001)
    assert metrics["samples"] == 360 and metrics["accuracy"] >= 0.97


@pytest.mark.thorough
def test_lstm_is_the_benchmark_s_and_tells_collisions_apart():
    """It has 3,343 parameters on the default events; 4 epochs reached 0.94 (chance is 0.33)."""
    whole = models.lstm(data.events(1))
    assert whole.count_params() == 3343 == 4 * (20 * 20 + 20 * 20 + 20) + 20 * 3 + 3
    assert whole.input_shape == (None, 338, 20)
    assert [type(layer).__name__ for layer in whole.layers] == ["Masking", "LSTM", "Dense"]
    replica = models.build("lstm", EVENTS)
    metrics = train(replica, EVENTS, epochs=4, learning_rate=0.02, batch_size=25)
    assert metrics["samples"] == 375 and metrics["accuracy"] > 0.8
    # Padding to 25 or to 40 places gives the same outputs.
    x = EVENTS.validation.inputs[:20]
    padded = np.pad(x, ((0, 0), (0, 15), (0, 0)))
    model = replica.model
    forty = Data.of(padded, np.arange(20) % 3)
    longer = models.lstm(Dataset("padded", forty, forty, 3))
    longer.set_weights(model.get_weights())
    np.testing.assert_allclose(longer(padded), model(x), atol=1e-5)


def test_lstm_puts_several_inputs_together():
    """Momenta and other features as two inputs, as a tuple and by name, give the same network."""
    x, y = EVENTS.train.take(slice(0, 30))
    one = models.build("lstm", Dataset("one", Data.of(x, y), Data.of(x, y), 3))
    for parts in ((x[..., :8], x[..., 8:]), {"a": x[..., :8], "b": x[..., 8:]}):
        both = Data.of(parts, y)
        two = models.build("lstm", Dataset("two", both, both, 3))
        assert two.model.count_params() == 3343
        np.testing.assert_array_equal(two.parameters, one.parameters)
        loss, _ = two.compute_gradient(both.take(slice(0, 30)))
        assert loss == pytest.approx(one.compute_gradient((x, y))[0], rel=1e-5)
        np.testing.assert_allclose(two.gradient, one.gradient, atol=1e-6)
    ragged = Data.of((x[..., :8], x[:, :5]), y)
    with pytest.raises(ValueError, match=r"equal steps for all inputs: .* \(\(25, 8\), \(5"):
        models.lstm(Dataset("ragged", ragged, ragged, 3))
    with pytest.raises(
        ValueError, match=r"'lstm' takes sequences .* 'digits' has samples of shape"
    ):
        models.lstm(DIGITS)


@pytest.mark.thorough
def test_the_gpt_in_numpy_is_that_in_keras():
    """The same weights, by their names, give the same loss, accuracy, outputs and gradient."""
    batch = TEXT.train.take(slice(0, 9))
    in_keras, in_numpy = models.build("gpt", TEXT, seed=2), models.build("transformer", TEXT)
    places = {one.name: one for one in in_numpy.segments}
    assert places.keys() == {one.name for one in in_keras.segments}
    for one in in_keras.segments:
        places[one.name].view(in_numpy.parameters)[...] = one.view(in_keras.parameters)
    loss, samples = in_numpy.compute_gradient(batch)
    assert samples == 9 and loss == pytest.approx(in_keras.compute_gradient(batch)[0], rel=1e-6)
    for one in in_keras.segments:
        found, expected = places[one.name].view(in_numpy.gradient), one.view(in_keras.gradient)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-7, err_msg=one.name)
    assert in_numpy.evaluate([batch]) == pytest.approx(in_keras.evaluate([batch]), rel=1e-6)
    outputs = in_keras.predict(batch[0])
    np.testing.assert_allclose(in_numpy.predict(batch[0]), outputs, rtol=1e-5, atol=1e-8)


def test_one_hot_labels_are_classes():
    """One-hot labels give the network, loss and gradient of class numbers; other rows do not."""
    x, y = DIGITS.train.take(slice(0, 200))
    rows, other = Data.of(x, np.eye(10, dtype="f4")[y]), Data.of(x, np.eye(10, dtype="f4")[y] / 2)
    by_row = models.build("mlp", Dataset("rows", rows, rows))
    by_number = models.build("mlp", DIGITS)
    loss, _ = by_row.compute_gradient(rows.take(slice(0, 200)))
    assert loss == pytest.approx(by_number.compute_gradient((x, y))[0], rel=1e-6)
    np.testing.assert_allclose(by_row.gradient, by_number.gradient, atol=1e-6)
    assert "accuracy" in by_row.evaluate([rows.take(slice(0, 9))])
    assert models.mlp(Dataset("other", other, other)).loss == "mse"


@pytest.mark.thorough
def test_lstm_on_files(tmp_path):
    """Gradients on files equal those on the arrays that were written, in any order of batches."""
    data.write_hdf5(EVENTS.train.rows(slice(0, 100)), tmp_path / "a.h5")
    files = data.load(str(tmp_path / "a.h5"))
    on_files, on_arrays = models.build("lstm", files), models.build("lstm", EVENTS)
    for x, y in Batches(files.train, 40).epoch():
        assert on_files.compute_gradient((x, y)) == on_arrays.compute_gradient((x, y))
        np.testing.assert_array_equal(on_files.gradient, on_arrays.gradient)


@pytest.mark.thorough(but=["softmax-0.93", "mlp-0.96"])
@pytest.mark.parametrize(("name", "accuracy"), [("softmax", 0.93), ("dense", 0.96), ("mlp", 0.96)])
def test_classifiers_learn(name, accuracy):
    metrics = train(models.build(name, DIGITS), DIGITS, epochs=15, learning_rate=0.003)
    assert metrics["accuracy"] >= accuracy


@pytest.mark.parametrize(("name", "epochs"), [("curve", 80), ("dense", 80), ("mlp", 40)])
def test_regressions_reach_the_noise(name, epochs):
    """With noise of 0.05, no model has a loss below 0.0025 on new samples."""
    dataset = data.curve(n=400, noise=0.05)
    replica = models.build(name, dataset)
    before = replica.evaluate([dataset.validation.take(slice(None))])["loss"]
    metrics = train(replica, dataset, epochs, learning_rate=0.003, batch_size=20)
    assert metrics["loss"] < 2 * 0.05**2 < before / 10


USER_FILE = """
import keras, numpy as np
from tutorial_dl import replica
def build():
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    x = keras.layers.Concatenate()([a, keras.layers.Dense(4, name="first")(b)])
    model = keras.Model({"a": a, "b": b}, keras.layers.Dense(1)(x))
    model.compile(loss="mse")
    return model
def without_input():
    model = keras.Sequential([keras.layers.Dense(10, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    return model
def numpy_model(): return replica.CurveReplica(parameters=np.random.random(4))
def not_compiled():
    x = keras.Input((3,))
    return keras.Model(x, keras.layers.Dense(1)(x), name="mine")
def nothing(): return None
"""


@pytest.fixture
def user_file(tmp_path, monkeypatch):
    (tmp_path / "users_model.py").write_text(USER_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "users_model.py"
    sys.modules.pop("users_model", None)


def test_a_user_s_model_of_two_inputs(user_file):
    r = models.build("users_model:build", TWO_INPUTS, seed=1)
    assert r.compute_gradient(TWO_INPUTS.train.take(slice(0, 4)))[1] == 4
    again, other = (models.build(f"{user_file}:build", TWO_INPUTS, seed=s) for s in (1, 2))
    np.testing.assert_array_equal(r.parameters, again.parameters)
    assert not np.array_equal(r.parameters, other.parameters)


def test_a_user_s_model_in_numpy(user_file):
    first, again, other = (
        models.build("users_model:numpy_model", CURVE, seed=s).parameters for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_keras_model_without_input_is_built_on_a_sample(user_file):
    r = models.build("users_model:without_input", DIGITS)
    assert [s.shape for s in r.segments] == [(1, 10), (10,)]  # a dense layer over the channels


def test_a_model_itself():
    model = models.mlp(DIGITS)
    assert isinstance(model, keras.Model)
    assert models.build(model, DIGITS).model is model
    curve = CurveReplica()
    assert models.build(curve, CURVE) is curve


@pytest.mark.parametrize(
    ("spec", "dataset", "kind", "complaint"),
    [
        (
            "nosuch",
            DIGITS,
            ValueError,
            "model 'nosuch': expected curve, softmax, dense, transformer, mlp, cnn, lstm, gpt",
        ),
        ("curve", DIGITS, ValueError, r"'digits' has samples of shape \(8, 8, 1\) in 10 classes"),
        ("softmax", CURVE, ValueError, "'softmax' needs classes: dataset 'curve' has none"),
        ("cnn", CURVE, ValueError, r"takes images .* 'curve' has samples of shape \(\)"),
        ("mlp", TEXT, ValueError, "one class per sample: dataset 'text' has one per position"),
        ("dense", IDS, ValueError, "6 different labels, up to 1000020040: number them from 0"),
        ("gpt", DIGITS, ValueError, r"'digits' has samples of shape \(8, 8, 1\); use data 'text'"),
        ("transformer", CURVE, ValueError, "'transformer' predicts the next token at each pos"),
        ("dense", TWO_INPUTS, ValueError, "model 'dense' has one input: dataset 'two' has 2"),
        ("mlp", TWO_INPUTS, ValueError, "model 'mlp' has one input: dataset 'two' has 2"),
        ("dense", TWO_TARGETS, ValueError, "has one output: dataset 'targets' has 2"),
        ("users_model:gone", DIGITS, ValueError, "has no function 'gone'"),
        (
            "users_model:nothing",
            DIGITS,
            TypeError,
            "model 'users_model:nothing': a builtins.NoneType is not a model",
        ),
        ("users_model:not_compiled", CURVE, ValueError, "': model 'mine' is not compiled"),
        (3, CURVE, TypeError, r"a builtins\.int is not a model"),
    ],
)
def test_wrong_models_are_refused_in_one_line(user_file, spec, dataset, kind, complaint):
    with pytest.raises(kind, match=complaint) as error:
        models.build(spec, dataset)
    assert "\n" not in str(error.value)
