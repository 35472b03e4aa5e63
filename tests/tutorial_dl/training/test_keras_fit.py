"""What plain Keras `fit` does, several ranks do: weights and metrics after the same batches."""

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("keras")

SAMPLES, BATCH, RATE = 50, 16, 0.2  # shares of 5 and 6 samples, and of 1 and 0 at the end


def constrained():
    """A network whose weights have bounds, which Keras applies after each update."""
    import keras

    bounds = keras.constraints
    return keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(6, "tanh", kernel_constraint=bounds.MaxNorm(0.4), bias_constraint=(
            bounds.NonNeg()
        )),
        keras.layers.Dense(5, "tanh", kernel_constraint=bounds.UnitNorm(axis=1)),
        keras.layers.Dense(1, "sigmoid", use_bias=False),
    ])  # fmt: skip


def keeps_its_bounds(model):
    first, bias, second, *_ = model.get_weights()
    assert np.linalg.norm(first, axis=0).max() < 0.4 + 1e-6 and bias.min() >= 0
    np.testing.assert_allclose(np.linalg.norm(second, axis=1), 1, rtol=1e-5)


def compiled(make):
    import keras

    keras.utils.set_random_seed(2)
    model = make()
    if len(model.outputs) == 1:
        metrics = ["AUC", "Precision", keras.metrics.BinaryIoU(threshold=0.5, name="iou")]
    else:
        metrics = [[keras.metrics.AUC(name="auc")], ["mse"]]
    model.compile(keras.optimizers.SGD(RATE), "binary_crossentropy", metrics=metrics)
    return model


STEPS = 7


def sequences():
    """Sequences of 1 to 7 words, padded with 0, and a target for each word."""
    from tutorial_dl import data

    dice = np.random.default_rng(6)
    words, lengths = dice.integers(1, 12, (SAMPLES, STEPS)), dice.integers(1, STEPS + 1, SAMPLES)
    words[np.arange(STEPS) >= lengths[:, None]] = 0
    targets = (np.cumsum(words, axis=1) % 3 == 0).astype(np.float32)[..., None]
    return words, targets, data


def for_each_word():
    words, targets, data = sequences()
    return data.Dataset("words", data.Data.of(words, targets), data.Data.of(words, targets))


def for_each_word_and_all():
    words, targets, data = sequences()
    both = data.Data.of(words, (targets, targets.mean(axis=1)))
    return data.Dataset("words", both, both)


def tagger(outputs=1):
    """A network with a mask: words of padding do not count in the loss."""
    import keras

    inputs = keras.Input((STEPS,), dtype="int64")
    x = keras.layers.Embedding(12, 4, mask_zero=True)(inputs)
    x = keras.layers.LSTM(5, return_sequences=True)(x)
    l2 = keras.regularizers.L2(0.01)
    each = keras.layers.Dense(1, "sigmoid", kernel_regularizer=l2, name="each")(x)
    whole = keras.layers.Dense(1, "sigmoid", name="whole")(keras.layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, [each, whole][:outputs])


def tagger_of_both():
    return tagger(2)


def samples():
    from tutorial_dl import data

    dice = np.random.default_rng(5)
    x = dice.standard_normal((SAMPLES, 4)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:2] > 0).astype(np.float32)
    return data.Dataset("signs", data.Data.of(x, y), data.Data.of(x[::-1], y[::-1]))


def by_keras(make, dataset, epochs):
    """({name: loss or metric}, the model) after `fit`, with the batches in our order."""
    from as_fit import of_rank_0

    from tutorial_dl.data import Batches

    model, batches = compiled(make), Batches(dataset.train, BATCH, seed=5)

    def train():
        for epoch in range(epochs):
            for x, y in batches.epoch(epoch):
                model.train_on_batch(x, y)
        kept = dataset.validation
        return model.evaluate(
            kept.inputs, kept.targets, batch_size=SAMPLES, verbose=0, return_dict=True
        )

    return of_rank_0(model, train), model


def as_keras(make, dataset, strategy, right=None, check=lambda model: None):
    """Assert that ranks do what Keras does, which is `right`, if that was computed before."""
    from numba_kernels.optimizers import SGD
    from tutorial_dl import Trainer

    model, (expected, theirs) = compiled(make), right or by_keras(make, dataset, 3)
    trainer = Trainer(model, dataset, strategy, SGD(RATE), batch_size=BATCH, seed=5, progress=False)
    history = trainer.fit(3)
    for mine, its in zip(model.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=2e-6)
    check(model)
    for found in (trainer.evaluate(), {n: history.last[f"val_{n}"] for n in expected}):
        assert {n: found[n] for n in expected} == pytest.approx(expected, rel=1e-5)


def with_bounds():
    from tutorial_dl import strategies

    bounded = by_keras(constrained, samples(), 3), keeps_its_bounds
    as_keras(constrained, samples(), strategies.Synchronous(), *bounded)


def test_constraints_of_keras_on_three_ranks(on_ranks):
    on_ranks(3, with_bounds, keras=True)


def each_rank():
    from tutorial_dl import strategies

    signs = samples()
    bounded = by_keras(constrained, signs, 3), keeps_its_bounds
    as_keras(constrained, signs, strategies.Synchronous(algorithm="ring"), *bounded)
    # Workers share each batch: Downpour is then training by one process.
    as_keras(constrained, signs, strategies.Downpour(synchronous=True), *bounded)
    as_keras(tagger, for_each_word(), strategies.Synchronous())
    as_keras(tagger_of_both, for_each_word_and_all(), strategies.Synchronous())
    learns_alone()


def learns_alone():
    """Asynchronous workers have batches of their own: no worker waits for another one's mask."""
    from tutorial_dl import Trainer

    trainer = Trainer(compiled(tagger), for_each_word(), "downpour", progress=False, batch_size=5)
    losses = trainer.fit(4).column("val_loss")
    assert losses[-1] < losses[0]


@pytest.mark.thorough
def test_constraints_masks_and_metrics_of_keras_on_three_ranks(on_ranks):
    on_ranks(3, each_rank, keras=True)


def refused():
    from tutorial_dl import Trainer, strategies

    by_itself = {"strategy": strategies.Downpour(synchronous=True)}
    for options in (by_itself, {"accumulate": 2}):
        with pytest.raises(ValueError, match="has a mask, so its loss is not a mean over samples"):
            Trainer(compiled(tagger), for_each_word(), **options)
    Trainer(compiled(tagger), for_each_word(), "downpour")  # each worker has batches of its own

    one_copy = strategies.Synchronous(one_copy=True)
    for strategy, words in ((strategies.Hogwild(), "hogwild"), (one_copy, "one_copy")):
        trainer = Trainer(compiled(constrained), samples(), strategy, progress=False)
        with pytest.raises(ValueError, match=words):
            trainer.fit(1)


@pytest.mark.thorough
def test_where_weights_are_shared_constraints_are_refused(on_ranks):
    on_ranks(2, refused, keras=True)
