"""Weights of samples and classes, data without targets or validation part: as in Keras's `fit`."""

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("keras")

SAMPLES, BATCH, RATE, EPOCHS = 50, 16, 0.3, 2


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


def by_keras(make, data, kept):
    """({name: loss or metric of `kept`}, the model) after training on the batches of our order."""
    from as_fit import of_rank_0

    from tutorial_dl.data import Batches

    model, batches = make(), Batches(data, BATCH, seed=5)

    def train():
        for epoch in range(EPOCHS):
            for x, y, *weights in batches.epoch(epoch):
                model.train_on_batch(x, y if isinstance(y, dict) or len(y) else None, *weights)
        targets = kept.targets if isinstance(kept.targets, dict) or len(kept.targets) else None
        options = dict(sample_weight=kept.weights, verbose=0, return_dict=True)
        return model.evaluate(kept.inputs, targets, len(kept), **options)

    return of_rank_0(model, train), model


def same(make, made, weighted=None, **options):
    """Our training is Keras's; `weighted`: the training data as plain Keras gets them."""
    from tutorial_dl import Trainer
    from tutorial_dl.data import dataset_of

    dataset = dataset_of(made)
    values, expected = by_keras(make, weighted or dataset.train, dataset.validation)
    model = make()
    trainer = Trainer(model, made, batch_size=BATCH, seed=5, progress=False, **options)
    history = trainer.fit(EPOCHS)
    for mine, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6)
    for name, value in values.items():
        assert history.last[f"val_{name}"] == pytest.approx(value, rel=1e-5), name


def each_rank():
    from tutorial_dl import data

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


@pytest.mark.thorough
def test_three_ranks_weigh_samples_as_fit_does(on_ranks):
    on_ranks(3, each_rank, keras=True)


def test_the_last_samples_are_held_out():
    from tutorial_dl import Trainer
    from tutorial_dl.data import dataset_of

    x, y, w = arrays()
    trainer = Trainer(classifier(), (x, y, w), validation_split=0.3, progress=False)
    train, kept = trainer.dataset.train, trainer.dataset.validation
    np.testing.assert_array_equal(np.concatenate([train.weights, kept.weights]), w)
    assert len(kept) == 15 and len(dataset_of((x, y)).validation) == 10
    for split in (0, 1, 1.5, 0.999, -1):
        with pytest.raises(ValueError, match="validation split of"):
            dataset_of((x[:10], y[:10]), split=split)
    with pytest.raises(ValueError, match="has a validation part"):
        dataset_of(((x, y), (x, y)), split=0.2)
    with pytest.raises(TypeError, match=r"expected a Dataset or \(\(x, y\), .* got a tuple of 4"):
        dataset_of((x, y, x, y))


WRONG_CLASSES = [
    ({0: -1.0}, "at least 0"),
    ({0: np.nan}, "finite"),
    ("equal", "or 'balanced', got 'equal'"),
]


@pytest.mark.parametrize(("weights", "words"), WRONG_CLASSES)
def test_wrong_weights_of_classes(weights, words):
    from tutorial_dl.data import Data
    from tutorial_dl.data.weights import by_class

    x, y, _ = arrays()
    with pytest.raises(ValueError, match=words):
        by_class(Data.of(x, y), weights)
    with pytest.raises(ValueError, match="needs class labels or one-hot rows"):
        by_class(Data.of(x, x[:, 0]), {0: 1.0})


def test_weights_of_classes_by_label_or_one_hot_row():
    from tutorial_dl.data import Data
    from tutorial_dl.data.weights import by_class

    x, y, w = arrays()
    expected = w * np.where(y == 1, 2.5, 1.0).astype(np.float32)
    for targets in (y, y[:, None], np.eye(2, dtype=np.float32)[y], y.astype(float)):
        found = by_class(Data.of(x, targets, w), {1: 2.5})
        np.testing.assert_array_equal(found.weights, expected)


def test_what_can_not_be_weighted_is_refused():
    import keras

    from tutorial_dl import Trainer, models
    from tutorial_dl.data import dataset_of

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
