"""Keras models that our strategies cannot train: the error is one line."""

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
