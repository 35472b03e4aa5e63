"""Keras networks (`mlp`, `cnn`, `lstm`, `gpt`), compiled with the loss that fits the dataset.

Weights depend on `seed` alone, layer by layer, so every rank and every run starts from the same.
"""

from __future__ import annotations

from tutorial_dl.data import Dataset
from tutorial_dl.models import one_hot, outputs, sample_shape, text_shape
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    from keras import layers, ops


def _compiled(name: str, chain: list, dataset: Dataset, seed: int) -> keras.Model:
    chain = _with_output(name, chain, dataset, seed)
    shape = sample_shape(name, dataset)
    return _for(dataset, keras.Sequential([keras.Input(shape, name="inputs"), *chain], name=name))


def _with_output(name: str, chain: list, dataset: Dataset, seed: int) -> list:
    """Add an output layer, and give every layer a seed of its own for its weights."""
    activation = "softmax" if dataset.classes or one_hot(dataset) else None
    chain = [*chain, layers.Dense(outputs(name, dataset), activation, name="output")]
    for i, layer in enumerate(chain):
        layer = getattr(layer, "cell", layer)  # a recurrent layer keeps its weights in its cell
        if hasattr(layer, "kernel_initializer"):
            layer.kernel_initializer = keras.initializers.GlorotUniform(seed=1000 * seed + i)
        if hasattr(layer, "recurrent_initializer"):
            layer.recurrent_initializer = keras.initializers.Orthogonal(seed=1000 * seed + i)
    return chain


def _for(dataset: Dataset, model: keras.Model) -> keras.Model:
    if one_hot(dataset):
        model.compile(loss="categorical_crossentropy", metrics=["accuracy"])
    elif dataset.classes:
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    else:
        model.compile(loss="mse")
    # The strategy chooses the optimizer, unless `compile` is called with another than its default.
    model.strategy_chooses = True
    return model


def mlp(dataset: Dataset, seed: int = 0) -> keras.Model:
    """Multi-layer perceptron: two hidden layers of 512 units."""
    chain = [
        layers.Flatten(name="flatten"),
        layers.Dense(512, "relu", name="dense_1"),
        layers.Dense(512, "relu", name="dense_2"),
    ]
    return _compiled("mlp", chain, dataset, seed)


def cnn(dataset: Dataset, seed: int = 0) -> keras.Model:
    """Convolutional network for images (height, width, channels) of at least 2 x 2.

    Two convolutions with 32 and 64 filters of 3 x 3, padded so that a small image keeps its size,
    max pooling by 2, and a dense layer of 128 units. On the digits its accuracy is 0.97 or more
    after 5 epochs.
    """
    shape = sample_shape("cnn", dataset)
    if len(shape) != 3 or min(shape[:2]) < 2:
        raise ValueError(
            f"model 'cnn' takes images (height, width, channels) of at least 2 x 2: dataset "
            f"'{dataset.name}' has samples of shape {shape}"
        )
    chain = [
        layers.Conv2D(32, 3, padding="same", activation="relu", name="conv_1"),
        layers.Conv2D(64, 3, padding="same", activation="relu", name="conv_2"),
        layers.MaxPooling2D(2, name="pool"),
        layers.Flatten(name="flatten"),
        layers.Dense(128, "relu", name="dense"),
    ]
    return _compiled("cnn", chain, dataset, seed)


def lstm(dataset: Dataset, seed: int = 0) -> keras.Model:
    """The benchmark model of MPI-Learn, for sequences (steps, features) that end in zeros.

    Layers: Concatenate (several inputs, along the features), Masking, LSTM of 20 units, Dense. For
    20 features and 3 classes it has 4 (20 x 20 + 20 x 20 + 20) + 20 x 3 + 3 = 3,343 parameters, for
    any number of steps. Anderson, Vlimant, Spiropulu, arXiv 1712.05878.
    """
    shapes = dataset.inputs_shape
    several = isinstance(shapes, dict) or bool(shapes and isinstance(shapes[0], tuple))
    every = (list(shapes.values()) if isinstance(shapes, dict) else shapes) if several else [shapes]
    if any(len(s) != 2 or 0 in s for s in every) or len({s[0] for s in every}) != 1:
        raise ValueError(
            f"model 'lstm' takes sequences (steps, features), with equal steps for all inputs: "
            f"dataset '{dataset.name}' has samples of shape {shapes}"
        )
    chain = [layers.Masking(name="masking"), layers.LSTM(20, name="lstm")]
    if not several:
        return _compiled("lstm", chain, dataset, seed)
    if isinstance(shapes, dict):
        inputs = {key: keras.Input(shape, name=key) for key, shape in shapes.items()}
    else:
        inputs = tuple(keras.Input(s, name=f"inputs_{i}") for i, s in enumerate(shapes))
    x = layers.Concatenate(name="concatenate")(keras.tree.flatten(inputs))
    for layer in _with_output("lstm", chain, dataset, seed):
        x = layer(x)
    return _for(dataset, keras.Model(inputs, x, name="lstm"))


def gpt(
    dataset: Dataset, seed: int = 0, width: int = 64, heads: int = 4, blocks: int = 2
) -> keras.Model:
    """A small GPT, for tokens and those that follow them: the network of replica/transformer.py."""
    tokens, positions = text_shape("gpt", dataset)

    def start(number: int):
        return keras.initializers.GlorotUniform(seed=1000 * seed + number)

    def embedding(name: str, rows: int, number: int):
        uniform = keras.initializers.RandomUniform(-0.05, 0.05, seed=1000 * seed + number)
        return layers.Embedding(rows, width, uniform, name=name)

    def norm(name: str):
        return layers.LayerNormalization(epsilon=1e-5, name=name)

    inputs = keras.Input((positions,), dtype="int32", name="inputs")
    place = ops.cumsum(ops.ones_like(inputs), axis=1) - 1
    x = embedding("tokens", tokens, 0)(inputs) + embedding("positions", positions, 1)(place)
    for block in range(1, blocks + 1):
        name = f"block_{block}"
        y = norm(f"{name}_norm_1")(x)
        attention = layers.MultiHeadAttention(
            heads, width // heads, kernel_initializer=start(10 * block), name=f"{name}_attention"
        )
        x = x + attention(y, y, use_causal_mask=True)
        y = norm(f"{name}_norm_2")(x)
        y = layers.Dense(
            4 * width, kernel_initializer=start(10 * block + 1), name=f"{name}_dense_1"
        )(y)
        y = layers.Dense(width, kernel_initializer=start(10 * block + 2), name=f"{name}_dense_2")(
            ops.gelu(y)  # approximated by tanh, as in GPT-2
        )
        x = x + y
    output = layers.Dense(tokens, "softmax", kernel_initializer=start(2), name="output")
    model = keras.Model(inputs, output(norm("norm")(x)), name="gpt")
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.strategy_chooses = True
    return model
