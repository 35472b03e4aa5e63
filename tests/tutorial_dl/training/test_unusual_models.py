"""Layers that are unlike others: they assign weights, keep a state, or read text."""

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("keras")

SAMPLES = 50  # in batches of 16, three ranks have 5 or 6 samples each, and 1, 0 or 1 of the last


def numbers(*shape):
    dice = np.random.default_rng(4)
    x = dice.standard_normal((SAMPLES, *shape)).astype(np.float32)
    return x, x.reshape(SAMPLES, -1)[:, :1] ** 2


def spectral():
    """Its kernels are divided by their norm whenever it computes, and so change without a rule."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(2)
    model = keras.Sequential([
        keras.Input((6, 6, 1)),
        layers.SpectralNormalization(layers.Conv2D(3, 3, activation="tanh"), power_iterations=2),
        layers.Flatten(),
        layers.SpectralNormalization(layers.Dense(4, "tanh")),
        layers.Dense(1),
    ])  # fmt: skip
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


SENTENCES = ["a good one", "bad", "good good", "not a bad one", "never again"] * 10


def reads_text():
    import keras

    keras.utils.set_random_seed(2)
    words = keras.layers.TextVectorization(20, output_sequence_length=4)
    words.adapt(SENTENCES)
    inputs = keras.Input((), dtype="string")
    x = keras.layers.Embedding(20, 4)(words(inputs))
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(x))
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=["accuracy"])
    return model


def stateful(batch=10):
    """The state of sample i of a batch goes on in sample i of the next one."""
    import keras

    keras.utils.set_random_seed(2)
    inputs = keras.Input(batch_shape=(batch, 5, 2))
    x = keras.layers.LSTM(4, stateful=True, bias_initializer="ones")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def each_rank():
    from as_fit import as_fit
    from mpi4py import MPI

    from tutorial_dl import Team, Trainer, strategies

    team = Team()
    data = numbers(6, 6, 1)
    as_fit(spectral, data, data, team)
    for options in (
        {"strategy": strategies.Downpour(synchronous=True)},
        {"strategy": "downpour"},  # the master's own weights would not be divided
        {"strategy": "hogwild"},
        {"strategy": strategies.Synchronous(one_copy=True)},  # all ranks would assign it at once
        {"accumulate": 2},
    ):
        with pytest.raises(ValueError, match="SpectralNormalization, which changes weights"):
            Trainer(spectral(), data, **options)

    labels = np.array(["good" in text for text in SENTENCES], np.float32)[:, None]
    texts = np.array(SENTENCES)
    as_fit(reads_text, (texts, labels), (texts, labels), team)

    data = numbers(5, 2)
    for strategy in ("synchronous", "hogwild", "downpour"):
        with pytest.raises(ValueError, match=r"batches have 10 samples each.*train on one rank"):
            Trainer(stateful(), data, strategy, team=team, batch_size=10)
    if team.rank == 0:
        alone_with_a_state(data, Team(MPI.COMM_SELF))


def alone_with_a_state(data, one):
    from as_fit import as_fit

    from tutorial_dl import Trainer, replica

    as_fit(stateful, data, data, one, batch_size=10)
    of = replica.of(stateful())
    for use in (lambda: of.predict(data[0][:4]), lambda: of.evaluate([(data[0][:4], data[1][:4])])):
        with pytest.raises(ValueError, match="keeps states, so its batches have 10 samples each, "):
            use()
    with pytest.raises(ValueError, match="batch_size must be 10, got 16"):
        Trainer(stateful(), (data, data), team=one, batch_size=16)
    with pytest.raises(ValueError, match="validation data must have a multiple of that, got 25"):
        Trainer(stateful(), (data, [part[:25] for part in data]), team=one, batch_size=10)


@pytest.mark.thorough
def test_three_ranks_train_as_fit_does(on_ranks):
    on_ranks(3, each_rank, keras=True)
