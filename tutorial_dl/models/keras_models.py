"""Networks in Keras, compiled with the loss that fits the dataset.

Weights are drawn from `seed` alone, layer by layer: every rank and every run starts from the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tutorial_dl.data import Dataset
from tutorial_dl.models.sizes import outputs, sample_shape

if TYPE_CHECKING:
    import keras


def _keras():
    from tutorial_dl.replica.quiet import hide_tensorflow_chatter

    hide_tensorflow_chatter()
    import keras

    return keras


def _compiled(name: str, layers: list, dataset: Dataset, seed: int) -> keras.Model:
    """The layers, an output layer and the loss: cross-entropy for classes, else squared error."""
    keras = _keras()
    layers.append(
        keras.layers.Dense(
            outputs(name, dataset), "softmax" if dataset.classes else None, name="output"
        )
    )
    for i, layer in enumerate(layers):
        if hasattr(layer, "kernel_initializer"):
            layer.kernel_initializer = keras.initializers.GlorotUniform(seed=1000 * seed + i)
    shape = sample_shape(name, dataset)
    model = keras.Sequential([keras.Input(shape, name="inputs"), *layers], name=name)
    if dataset.classes:
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    else:
        model.compile(loss="mse")
    return model


def mlp(dataset: Dataset, seed: int = 0) -> keras.Model:
    """Multi-layer perceptron: two hidden layers of 512."""
    layers = _keras().layers
    return _compiled(
        "mlp",
        [
            layers.Flatten(name="flatten"),
            layers.Dense(512, "relu", name="dense_1"),
            layers.Dense(512, "relu", name="dense_2"),
        ],
        dataset,
        seed,
    )


def cnn(dataset: Dataset, seed: int = 0) -> keras.Model:
    """Convolutional network for images (height, width, channels) of at least 2 x 2.

    Two convolutions of 32 and 64 filters of 3 x 3, padded so that a small image stays as large,
    pooling by 2, a dense layer of 128. On the digits: 0.97 and more after 5 epochs.
    """
    shape = sample_shape("cnn", dataset)
    if len(shape) != 3 or min(shape[:2]) < 2:
        raise ValueError(
            f"model 'cnn' takes images (height, width, channels) of at least 2 x 2: dataset "
            f"'{dataset.name}' has samples of shape {shape}"
        )
    layers = _keras().layers
    return _compiled(
        "cnn",
        [
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv_1"),
            layers.Conv2D(64, 3, padding="same", activation="relu", name="conv_2"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Flatten(name="flatten"),
            layers.Dense(128, "relu", name="dense"),
        ],
        dataset,
        seed,
    )
