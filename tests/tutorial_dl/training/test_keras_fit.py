"""What plain Keras does, several ranks do: weights and metrics after the same batches."""

import numpy as np
import pytest
from as_fit import as_by_batches, as_fit
from mpi4py import MPI
from rank_tests import with_ranks

from tutorial_dl import Team, Trainer, models, replica, strategies
from tutorial_dl.data import Data, dataset_of
from tutorial_dl.data.weights import by_class

pytestmark = pytest.mark.xdist_group("keras")

SAMPLES, BATCH, RATE = 50, 16, 0.2  # shares of 5 and 6 samples, and of 1 and 0 at the end


# Bounds of weights, masks, metrics -------------------------------------------------------------


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
    """One of these models, with metrics of many kinds."""
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


def bounded(strategies):
    """Ranks do what Keras does with bounds of weights, by each of these strategies."""
    right = None
    for strategy in strategies:
        made = lambda: compiled(constrained)  # noqa: E731
        model, right = as_by_batches(made, samples(), BATCH, 3, right, strategy=strategy)
        keeps_its_bounds(model)


@with_ranks(3, keras=True)
def test_constraints_of_keras_on_three_ranks():
    bounded(["synchronous"])


@pytest.mark.thorough
@with_ranks(3, keras=True)
def test_constraints_masks_and_metrics_of_keras_on_three_ranks():
    # Workers share each batch: Downpour is then training by one process.
    bounded([strategies.Synchronous(algorithm="ring"), strategies.Downpour(synchronous=True)])
    for make, data in ((tagger, for_each_word()), (tagger_of_both, for_each_word_and_all())):
        as_by_batches(lambda make=make: compiled(make), data, BATCH, 3)
    # Asynchronous workers have batches of their own: none waits for another one's mask.
    trainer = Trainer(compiled(tagger), for_each_word(), "downpour", progress=False, batch_size=5)
    losses = trainer.fit(4).column("val_loss")
    assert losses[-1] < losses[0]


@pytest.mark.thorough
@with_ranks(2, keras=True)
def test_where_weights_are_shared_constraints_are_refused():
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


# Weights of samples and classes, data without targets ------------------------------------------


def arrays():
    dice = np.random.default_rng(5)
    x = dice.standard_normal((SAMPLES, 4)).astype(np.float32)
    y = (x[:, 0] > 0.7).astype(np.int64)  # 12 of 50 samples
    return x, y, dice.uniform(0, 3, SAMPLES).astype(np.float32)


def classifier():
    import keras

    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    loss = "sparse_categorical_crossentropy"
    sgd, accuracy = keras.optimizers.SGD(RATE), ["accuracy"]
    model.compile(sgd, loss, metrics=accuracy, weighted_metrics=accuracy)
    return model


def of_two_outputs():
    import keras

    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,))
    one, two = (keras.layers.Dense(1, name=name)(inputs) for name in ("one", "two"))
    model = keras.Model(inputs, {"one": one, "two": two})
    model.compile(keras.optimizers.SGD(0.02), {"one": "mse", "two": "mae"})
    return model


def autoencoder():
    """A model whose loss needs no targets."""
    import keras

    class Difference(keras.layers.Layer):
        def call(self, both):
            self.add_loss(keras.ops.mean(keras.ops.square(both[0] - both[1])))
            return both[1]

    keras.utils.set_random_seed(2)
    inputs = keras.Input((4,))
    code = keras.layers.Dense(2, "tanh")(inputs)
    model = keras.Model(inputs, Difference()([inputs, keras.layers.Dense(4)(code)]))
    model.compile(keras.optimizers.SGD(RATE))
    return model


@pytest.mark.thorough
@with_ranks(3, keras=True)
def test_three_ranks_weigh_samples_as_fit_does():
    from tutorial_dl import data

    def same(make, made, weighted=None, **options):
        as_by_batches(make, made, BATCH, 2, weighted=weighted, **options)

    x, y, w = arrays()
    part = slice(30, None)
    same(classifier, ((x, y, w), (x[part], y[part], w[part])))
    both = {"one": x[:, :1] ** 2, "two": x[:, 1:2]}
    weights = {"one": w, "two": w[::-1].copy()}
    same(of_two_outputs, ((x, both, weights), (x, both, weights)))
    same(autoencoder, ((x, None), (x[part], None)))
    # Weights of classes count in training only.
    plain = data.dataset_of(((x, y), (x[part], y[part])))
    of_class = data.Data.of(x, y, np.where(y == 1, 5.0, 1.0))
    same(classifier, plain, of_class, class_weight={1: 5.0})
    counts = np.bincount(y)
    balanced = data.Data.of(x, y, (SAMPLES / (2 * counts))[y])
    same(classifier, plain, balanced, class_weight="balanced")


def test_the_last_samples_are_held_out():
    x, y, w = arrays()
    trainer = Trainer(classifier(), (x, y, w), validation_split=0.3, progress=False)
    train, kept = trainer.dataset.train, trainer.dataset.validation
    np.testing.assert_array_equal(np.concatenate([train.weights, kept.weights]), w)
    assert len(kept) == 15 and len(dataset_of((x, y)).validation) == 10
    everything = Trainer(classifier(), (x, y, w), validation_split=0, progress=False)
    everything.fit(1)
    assert len(everything.dataset.train) == len(x)
    assert everything.history.last.keys() == {
        name for name in trainer.fit(1).last if not name.startswith("val_")
    }
    for split in (1, 1.5, 0.999, -1):
        with pytest.raises(ValueError, match="validation split of"):
            dataset_of((x[:10], y[:10]), split=split)
    with pytest.raises(ValueError, match="has a validation part"):
        dataset_of(((x, y), (x, y)), split=0.2)
    with pytest.raises(TypeError, match=r"expected a Dataset or \(\(x, y\), .* got a tuple of 4"):
        dataset_of((x, y, x, y))


def test_weights_of_classes():
    x, y, w = arrays()
    expected = w * np.where(y == 1, 2.5, 1.0).astype(np.float32)
    for targets in (y, y[:, None], np.eye(2, dtype=np.float32)[y], y.astype(float)):
        found = by_class(Data.of(x, targets, w), {1: 2.5, 7: 3.0})  # no sample has class 7
        np.testing.assert_array_equal(found.weights, expected)
    for targets, weights, words in (
        (y, {0: -1.0}, "at least 0"),
        (y, {0: np.nan}, "finite"),
        (y, "equal", "or 'balanced', got 'equal'"),
        (x[:, 0], {0: 1.0}, "needs class labels or one-hot rows"),
    ):
        with pytest.raises(ValueError, match=words):
            by_class(Data.of(x, targets), weights)


def test_what_can_not_be_weighted_is_refused():
    import keras

    x, y, w = arrays()
    weighted = dataset_of(((x, y, w), (x, y, w)))
    trainer = Trainer(models.dense(weighted), weighted, progress=False)
    with pytest.raises(ValueError, match="takes no weights of samples"):
        trainer.fit(1)
    model = classifier()
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    with pytest.raises(ValueError, match="'mean_with_sample_weight' and weights of samples"):
        Trainer(model, weighted, accumulate=2)
    with pytest.raises(ValueError, match=r"weights\[3\] is nan"):
        w[3] = np.nan
        Trainer(classifier(), ((x, y, w), (x, y)))


# Layers that assign weights, keep a state, or read text ----------------------------------------


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


def alone_with_a_state(data, one):
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
@with_ranks(3, keras=True)
def test_layers_unlike_others_on_three_ranks():
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
