"""Keras models for tests of cuts, each with a batch of 13 samples: mlp() -> model, batch."""

import numpy as np
from keras_networks import keras, layers

from tutorial_dl import data, models

TEXT = data.text(length=12, characters=3000)
RANDOM = np.random.default_rng(3)
IMAGES, LABELS = RANDOM.standard_normal((13, 6, 6, 1)).astype("f4"), RANDOM.integers(0, 3, 13)
SERIES, EACH = RANDOM.standard_normal((13, 12, 3)).astype("f4"), RANDOM.integers(0, 4, (13, 12))
WORDS, PLACES = (RANDOM.standard_normal((13, n)).astype("f4") for n in (4, 2))
WAVES = np.sin(np.arange(12)[None, :, None] * np.array([0.1, 0.5, 1, 2, 3, 4])).astype("f4")


def start(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def dense(name, units, activation=None, seed=0, **options):
    return layers.Dense(units, activation, kernel_initializer=start(seed), name=name, **options)


def compiled(model, **options):
    options = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **options}
    model.compile(**options)
    return model


def gpt():
    """Causal; its numbers of positions are computed from the tokens. 13 samples."""
    return models.gpt(TEXT, seed=1, width=12, heads=6, blocks=1), TEXT.train.take(slice(0, 13))


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
    return compiled(keras.Sequential(chain)), (IMAGES, LABELS)


def convolution(name, filters, seed):
    return layers.Conv2D(filters, 3, activation="relu", kernel_initializer=start(seed), name=name)


def cnn():
    """A pair of convolutions, and a gated pair of dense layers: two by columns enter together."""
    x = inputs = keras.Input((6, 6, 1))
    x = convolution("conv_2", 4, 2)(convolution("conv_1", 6, 1)(x))
    x = layers.Flatten(name="conv_2_leave")(x)  # as a layer of ours behind it would be called
    gate, up = dense("gate", 12, "silu", 3)(x), dense("up", 12, None, 4)(x)
    x = dense("down", 5, None, 5, use_bias=False)(layers.Multiply(name="times")([gate, up]))
    return compiled(keras.Model(inputs, dense("last", 3, "softmax", 6)(x))), (IMAGES, LABELS)


def pooled(dropout=0.3):
    """Full attention; dropout between the pairs and within one; pooling over positions.

    A convolution mixes positions, and a norm has a regulariser: both get whole sequences. Neither
    2 nor 3 ranks divide 11 positions.
    """
    inputs = keras.Input((11, 3))
    x = dense("first", 12, seed=1)(inputs) + np.concatenate([WAVES, -WAVES], -1)[:, :11]
    x = layers.Dropout(dropout, seed=3, name="drop_1")(x)
    y = layers.LayerNormalization(name="norm_1")(x)
    heads = layers.MultiHeadAttention(6, 2, kernel_initializer=start(4), name="attend")
    x = layers.Add(name="add")([x, layers.SpatialDropout1D(dropout, seed=5)(heads(y, y))])
    y = layers.Conv1D(12, 3, padding="same", kernel_initializer=start(6), name="conv")(x)
    x += dense("behind", 12, seed=7)(y)
    y = layers.LayerNormalization(gamma_regularizer="l2", name="norm_2")(x)
    y = layers.Dropout(dropout, seed=9, name="inside")(dense("pair_1", 24, "gelu", 8)(y))
    x += dense("pair_2", 12, "tanh", 10)(y)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(name="norm_3")(x))
    model = keras.Model(inputs, dense("last", 4, "softmax", 11)(x), name="pooled")
    return compiled(model), (SERIES[:, :11], EACH[:, 0])


def by_position(dropout=0.3, penalty="l2"):
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
    return compiled(keras.Model(inputs, x, name="by_position")), (SERIES, EACH)


def convolutional():
    chain = [
        keras.Input((6, 6, 1)),
        convolution("convolution", 4, 1),
        layers.MaxPooling2D(name="pool"),
        layers.Flatten(name="flat"),
        dense("dense", 8, "relu", 2),
        dense("last", 3, "softmax", 3),
    ]
    return compiled(keras.Sequential(chain)), (IMAGES, LABELS)


def several():
    """Two inputs, two outputs, and an activation that goes around a group."""
    image, words = keras.Input((6, 6, 1), name="image"), keras.Input((4,), name="words")
    early = dense("early", 5, "tanh", 1)(words)
    x = dense("first", 6, "tanh", 2)(layers.Flatten()(image))
    x = layers.Concatenate()([dense("second", 6, "tanh", 3)(x), early, words])
    outputs = {
        "place": dense("place", 2, None, 4)(x),
        "kind": dense("kind", 3, "softmax", 5)(x),
    }
    model = keras.Model([image, words], outputs)
    losses = {"place": "mse", "kind": "sparse_categorical_crossentropy"}
    compiled(model, loss=losses, metrics={"kind": "accuracy"})
    return model, ((IMAGES, WORDS), {"place": PLACES, "kind": LABELS})


def skipping():
    """A boundary has several tensors: one input and one activation go around the middle.

    Layers without weights are used on both sides of it, and one has a name that Keras gives.
    """
    image, words = keras.Input((6, 6, 1), name="image"), keras.Input((4,), name="words")
    act, add = layers.Activation("tanh", name="act"), layers.Add(name="add")
    early = act(dense("early", 5, None, 1)(layers.Identity(name="identity")(words)))
    x = layers.Flatten(name="flat")(convolution("convolution", 3, 2)(image))
    x = act(dense("middle", 6, None, 3)(add([x, x])))
    x = add([x, x])
    x = layers.Concatenate(name="together")([x, early, words])
    model = keras.Model([image, words], dense("last", 2, seed=4)(x))
    return compiled(model, loss="mse", metrics=None), ((IMAGES, WORDS), PLACES)


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
    x = dense("second", 6, "tanh", 2)(dense("frozen", 4, "tanh", 1, trainable=False)(words))
    x = dense("third", 6, "tanh", 3)(Around()(x))
    x = Doubles()(x, training=True)  # which Keras's own models overrule as they evaluate
    table, x = Table()(x), dense("fourth", 6, seed=4)(x)
    x = keras.ops.einsum("ij,bi->bj", table, x)
    model = keras.Model(words, dense("last", 2, seed=5)(x))
    return compiled(model, loss="mse", metrics=None), (WORDS, PLACES)
