"""Keras models that our strategies cannot train: the error is one line."""

import numpy as np
import pytest
from keras_networks import compiled, convolutional, keras, layers

from tutorial_dl import replica

pytestmark = pytest.mark.xdist_group("keras")


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


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (not_compiled, "model 'bare' is not compiled: call model.compile"),
        (not_built, "model 'unbuilt' has no weights yet: give it a keras.Input"),
        (frozen, "has no trainable weights"),
        (half, "trainable weights of dtype float16: expected all float32"),
        (double_with_single_loss, "has float64 weights but a float32 loss: .*set_floatx"),
        (summed, "reduction 'sum'.*'sum_over_batch_size'"),
    ],
)
def test_models_that_cannot_be_trained_are_refused_in_one_line(make, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        replica.of(make())
    assert "\n" not in str(error.value)


def test_only_keras_models():
    with pytest.raises(TypeError, match=r"a list is not a keras\.Model"):
        replica.KerasReplica([])


# Batches that do not fit

X = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
LABELS, SPARSE = np.array([0, 1, 2, 0, 1, 2]), "sparse_categorical_crossentropy"
ONE_HOT = np.eye(3, dtype=np.float32)[LABELS]
TEXT = np.array(["yes", "no"] * 3)


def network(outputs=3, activation="softmax", inputs=4, **options):
    x = keras.Input((inputs,), name="x")
    outputs = layers.Dense(outputs, activation)(x)
    model = keras.Model(x, outputs, name="net")
    model.compile("sgd", **({"loss": SPARSE, "metrics": ["accuracy"]} | options))
    return model


def two_inputs():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    model = keras.Model([a, b], layers.Dense(1)(layers.add([a, b])), name="net")
    model.compile("sgd", "mse")
    return model


def unusual(loss):
    return network(loss=loss, metrics=[])


@pytest.mark.parametrize(
    ("make", "x", "y", "words"),
    [
        (network, X, ONE_HOT, r"takes labels of shape \(n\), got targets of shape \(n, 3\): use "),
        (lambda: unusual("categorical_crossentropy"), X, LABELS, r"one-hot targets of shape \(n, "
         r"3\), got \(n\): use 'sparse_categorical_crossentropy', or keras.utils.to_categorical"),
        (lambda: network(2), X, LABELS, "target 2 is no class: .* whole numbers from 0 to 1"),
        (network, X, LABELS - 1, "target -1 is no class: .* whole numbers from 0 to 2, as it has"),
        (network, X, LABELS + 0.5, r"target 0\.5 is no class"),
        (lambda: network(2, None, loss="mse", metrics=[]), X, ONE_HOT,
         r"loss 'mse' does not fit targets of shape \(n, 3\) and outputs of shape \(n, 2\)"),
        (lambda: network(inputs=5), X, LABELS, r"inputs have shape \(n, 4\), expected \(n, 5\)"),
        (network, TEXT, LABELS, "inputs are text, expected float32: .*TextVectorization"),
        (two_inputs, X, X[:, :1], r"has 2 inputs \(a, b\), got 1: give x as a tuple of arrays"),
        (two_inputs, {"a": X, "c": X}, X[:, :1], "inputs are 'a', 'c', expected 'a', 'b'"),
        (lambda: unusual("categorical_crosentropy"), X, ONE_HOT,
         "there is no loss 'categorical_crosentropy': did you mean 'categorical_crossentropy'?"),
        (network, X, (), "there are no targets, but its loss needs them"),
        (lambda: network(metrics=["AUC"]), X, LABELS, "metric 'AUC' does not fit targets of shape"),
    ],
)  # fmt: skip
def test_batches_that_do_not_fit_are_explained_in_one_line(make, x, y, words):
    of = replica.of(make())
    with pytest.raises(ValueError, match=f"model 'net':? .*{words}") as said:
        of.try_out((x, y), shared=False)
        of.compute_gradient((x, y))
    assert "\n" not in str(said.value) and len(str(said.value)) <= 200


def test_a_label_far_back_is_named_when_it_is_met():
    labels = np.array([0, 1, 2, 0, 1, 7])
    for use in (lambda r: r.compute_gradient((X, labels)), lambda r: r.evaluate([(X, labels)])):
        with pytest.raises(ValueError, match="target 7 is no class"):
            use(replica.of(network()))


def test_labels_that_a_loss_ignores_are_taken():
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
    labels = np.array([0, -1, 2, 0, -1, 2])
    r = replica.of(unusual(loss))
    r.try_out((X, labels), shared=False)
    assert np.isfinite(r.compute_gradient((X, labels))[0])


def test_losses_by_name_belong_to_outputs_in_any_order():
    x = keras.Input((4,), name="x")
    outputs = [layers.Dense(3, "softmax", name="b")(x), layers.Dense(1, name="a")(x)]
    model = keras.Model(x, outputs, name="net")
    model.compile("sgd", {"b": SPARSE, "a": "mse"})
    batch = X, {"b": LABELS, "a": X[:, :1]}
    r = replica.of(model)
    r.try_out(batch, shared=True)
    assert np.isfinite(r.compute_gradient(batch)[0])
    with pytest.raises(ValueError, match="target 3 is no class"):
        r.try_out((X, {"b": LABELS + 1, "a": X[:, :1]}), shared=True)


def test_a_number_of_samples_in_the_inputs_is_no_promise():
    """Only networks that keep states need batches of that size."""
    x = keras.Input(batch_shape=(2, 4))
    model = keras.Model(x, layers.Dense(3, "softmax")(x))
    model.compile("sgd", SPARSE)
    assert replica.of(model).traits.fixed_batch is None
