"""A Trainer uses the optimizer that a model was compiled with, on one rank and on three."""

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("keras")

SAMPLES, BATCH, EPOCHS = 50, 16, 3


def samples():
    from tutorial_dl import data

    dice = np.random.default_rng(5)
    x = dice.standard_normal((SAMPLES, 4)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:2] > 0).astype(np.float32)
    return data.Dataset("signs", data.Data.of(x, y), data.Data.of(x[::-1], y[::-1]))


def compiled(optimizer):
    import keras

    keras.utils.set_random_seed(2)
    bound = keras.constraints.MaxNorm(0.8)
    model = keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(6, "tanh", kernel_constraint=bound),
        keras.layers.Dense(1, "sigmoid"),
    ])  # fmt: skip
    model.compile(optimizer, "binary_crossentropy")
    return model


def decaying():
    """With momentum, which Keras does not correct when the rate changes."""
    import keras

    rates = keras.optimizers.schedules.ExponentialDecay(0.5, 3, 0.7)
    return keras.optimizers.SGD(rates, momentum=0.9, global_clipnorm=0.1)


def by_keras_alone():
    import keras

    # (A smaller epsilon would magnify the rounding of gradients that are nearly 0.)
    return keras.optimizers.Adam(0.05, epsilon=1e-3, amsgrad=True, clipnorm=0.1)


def averaging():
    import keras

    average = {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 5}
    return keras.optimizers.Adam(0.05, epsilon=1e-3, **average)


def averaged_by_ftrl():
    import keras

    return keras.optimizers.Ftrl(0.1, use_ema=True, ema_momentum=0.8)


def orthogonal():
    import keras

    return keras.optimizers.Muon(0.0625, exclude_layers=["_1/"])


def by_keras(optimizer):
    """The weights after `fit`, with the batches in our order."""
    from as_fit import of_rank_0

    from tutorial_dl.data import Batches

    model, batches = compiled(optimizer), Batches(samples().train, BATCH, seed=5)

    def train():
        for epoch in range(EPOCHS):
            for x, y in batches.epoch(epoch):
                model.train_on_batch(x, y)
        model.optimizer.finalize_variable_values(model.trainable_variables)  # as `fit` does

    of_rank_0(model, train)
    return model.get_weights()


def equals(expected, trainer, model, epochs=EPOCHS):
    trainer.fit_to(epochs)
    for mine, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=3e-6)


def trainer_of(model, strategy="synchronous", optimizer=None, **options):
    from tutorial_dl import Trainer

    options = {"batch_size": BATCH, "seed": 5, "progress": False} | options
    return Trainer(model, samples(), strategy, optimizer, **options)


def as_fit(folder):
    import keras

    from tutorial_dl import strategies

    for make in (decaying, by_keras_alone, averaging, averaged_by_ftrl, orthogonal):
        expected, model = by_keras(make()), compiled(make())
        equals(expected, trainer_of(model), model)
        model = compiled(keras.optimizers.SGD(7.0))
        equals(expected, trainer_of(model, optimizer=make()), model)  # given to the Trainer instead
    # Checkpoints have the state of an optimizer of Keras's, an average, and that of owners.
    for make in (by_keras_alone, averaging, orthogonal):
        expected, where = by_keras(make()), f"{folder}_{make.__name__}"
        trainer_of(compiled(make()), checkpoint=where).fit(2)
        again = compiled(make())
        trainer = trainer_of(again, checkpoint=where)
        assert trainer.resume()
        equals(expected, trainer, again)
    # An asynchronous master has a kernel for SGD, and none for amsgrad.
    master = strategies.Downpour(synchronous=True)
    expected, model = (
        by_keras(keras.optimizers.Adagrad(0.5)),
        compiled(keras.optimizers.Adagrad(0.5)),
    )
    equals(expected, trainer_of(model, master), model)


@pytest.mark.thorough
def test_three_ranks_train_as_fit_does(on_ranks, tmp_path):
    on_ranks(3, as_fit, str(tmp_path / "run"), keras=True)


def test_one_rank_trains_as_fit_does(on_ranks, tmp_path):
    on_ranks(1, as_one, keras=True)


def as_one():
    for make in (decaying, by_keras_alone, averaging, orthogonal):
        expected = by_keras(make())
        for strategy in ("serial", "synchronous"):
            model = compiled(make())
            equals(expected, trainer_of(model, strategy), model)


def test_what_is_not_used_is_said(capfd):
    import keras

    from tutorial_dl import replica, strategies
    from tutorial_dl.training.optimizer_choice import choose

    def chosen(optimizer, strategy, asked=None):
        return choose(replica.of(compiled(optimizer)), strategy, asked)

    adam, matching = keras.optimizers.Adam(0.05), strategies.GradientEnergyMatching()
    assert not chosen(adam, strategies.Synchronous()).note
    assert not chosen("rmsprop", matching).note  # what `compile` chooses if none is given
    found = chosen(adam, matching)
    assert found.optimizer.name == "sgd" and found.note == (
        "trained with sgd, learning rate 0.1 instead of Adam, which the model was compiled with: "
        "gradient energy matching needs plain sgd, got adam"
    )
    for strategy in (strategies.Downpour(), strategies.ElasticAveraging()):
        with pytest.raises(ValueError, match="kernel, got Keras's Adam: choose one with --op"):
            chosen(by_keras_alone(), strategy)
    with pytest.raises(ValueError, match="needs plain sgd"):
        chosen(None, matching, adam)
    with pytest.raises(ValueError, match="one_copy does not fit Keras's Adam"):
        chosen(None, strategies.Synchronous(one_copy=True), by_keras_alone())
    trainer_of(compiled(by_keras_alone()))
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("note:")]
    assert len(said) == 1 and said[0].startswith("note: Keras applies Adam, with which the model")
