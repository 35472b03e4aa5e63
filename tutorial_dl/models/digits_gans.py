"""GANs of handwritten digits, conditional on the class: dense, and convolutional."""

from __future__ import annotations

from tutorial_dl.data import Dataset
from tutorial_dl.models import sample_shape
from tutorial_dl.replica.gan import Game, Rules
from tutorial_dl.replica.keras_gan import KerasGan
from tutorial_dl.replica.keras_spectral import SpectralConv2D, SpectralDense
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    from keras import layers, ops

NOISE = 32
RULES = Rules(smoothing=0.1, auxiliary={"class": 1.0}, rates=(2e-4, 4e-4), average=0.998)


def _parts(name: str, dataset: Dataset):
    """The samples' shape and the number of classes."""
    shape = sample_shape(name, dataset)
    if dataset.classes is None or len(shape) != 3 or shape[0] % 4 or shape[1] % 4:
        raise ValueError(
            f"model '{name}' makes images (height, width, channels), height and width multiples of "
            f"4, of a class asked for: dataset '{dataset.name}' has samples of shape {shape} in "
            f"{dataset.classes or 'no'} classes"
        )
    return shape, dataset.classes


def seeded(model, seed: int):
    """The model with initial weights that depend on `seed` alone, layer by layer (Glorot)."""
    for i, layer in enumerate(model.layers):
        if hasattr(layer, "kernel"):
            start = keras.initializers.GlorotUniform(seed=1000 * seed + i)
            layer.kernel.assign(start(layer.kernel.shape, layer.kernel.dtype))
    return model


def _game(name: str, generator, discriminator, seed: int) -> Game:
    game = KerasGan(seeded(generator, 2 * seed), seeded(discriminator, 2 * seed + 1), RULES)
    game.name = name
    return game


def _judged(image, y, features, classes: int):
    """The discriminator: a score by the image and, by projection, for its class; and the class.

    Projection: Miyato and Koyama, arXiv 1802.05637.
    """
    asked = layers.Dense(features.shape[-1], use_bias=False, name="projection")(
        ops.one_hot(y, classes)
    )
    fits = ops.sum(asked * features, axis=-1, keepdims=True) / features.shape[-1]
    score = SpectralDense(1, name="plain_score")(features) + fits
    outputs = {"score": score, "class": layers.Dense(classes, name="class")(features)}
    return keras.Model([image, y], outputs, name="discriminator")


def digits_gan(dataset: Dataset, seed: int = 0) -> Game:
    """The dense one: two hidden layers of 128 units in each player."""
    shape, classes = _parts("digits-gan", dataset)
    pixels = shape[0] * shape[1] * shape[2]
    noise, y = keras.Input((NOISE,), name="noise"), keras.Input((), dtype="int64", name="y")
    x = layers.Concatenate()([noise, ops.one_hot(y, classes)])
    for _ in range(2):
        x = layers.Dense(128, "swish")(x)
    x = layers.Reshape(shape)(layers.Dense(pixels, "sigmoid")(x))
    generator = keras.Model([noise, y], x, name="generator")

    image, y = keras.Input(shape, name="image"), keras.Input((), dtype="int64", name="y")
    x = layers.Flatten()(image)
    for _ in range(2):
        x = layers.LeakyReLU(0.2)(SpectralDense(128)(x))
    return _game("digits-gan", generator, _judged(image, y, x, classes), seed)


def digits_conv_gan(dataset: Dataset, seed: int = 0) -> Game:
    """The convolutional one: images grow twice by 2 in the generator, and shrink likewise."""
    shape, classes = _parts("digits-conv-gan", dataset)
    small = (shape[0] // 4, shape[1] // 4, 64)
    noise, y = keras.Input((NOISE,), name="noise"), keras.Input((), dtype="int64", name="y")
    x = layers.Concatenate()([noise, ops.one_hot(y, classes)])
    x = layers.Reshape(small)(layers.Dense(small[0] * small[1] * 64, "swish")(x))
    for filters in (48, 32):
        x = layers.Conv2D(filters, 3, padding="same", activation="swish")(layers.UpSampling2D()(x))
    x = layers.Conv2D(shape[2], 3, padding="same", activation="sigmoid")(x)
    generator = keras.Model([noise, y], x, name="generator")

    image, y = keras.Input(shape, name="image"), keras.Input((), dtype="int64", name="y")
    x = image
    for filters in (32, 64):
        x = SpectralConv2D(filters, 3, strides=2, padding="same")(x)
        x = layers.LeakyReLU(0.2)(x)
    x = layers.LeakyReLU(0.2)(SpectralDense(128)(layers.Flatten()(x)))
    return _game("digits-conv-gan", generator, _judged(image, y, x, classes), seed)
