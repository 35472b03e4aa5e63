"""Small Keras networks of all kinds, with a batch for each: build("two_inputs") -> model, batch"""

import numpy as np
from lazily import Lazily

from tutorial_dl import data

IMPORTED = "tutorial_dl.replica.keras.replica"
keras, layers, tf = (Lazily(IMPORTED, name) for name in ("keras", "keras.layers", "tf"))
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


def regularised():
    class Penalised(layers.Layer):
        """A layer that adds a loss itself and has a scalar weight."""

        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, x):
            self.add_loss(0.3 * keras.ops.square(self.scale - 3))
            return x * self.scale

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
    """The loss and each layer's gradient, as Keras's own train_step computes them."""
    x, y = keras.tree.map_structure(tf.constant, batch[0]), batch[1]
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
    weights = [v.value for v in model.trainable_variables]
    gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
    return float(loss), [tf.convert_to_tensor(g).numpy() for g in gradients]


def addresses(model):
    return [
        np.from_dlpack(v.value.read_value()).__array_interface__["data"][0]
        for v in model.trainable_variables
    ]
