"""tf.data, PyDataset and generators: two ranks end where plain Keras's `fit` on them does."""

import numpy as np
import pytest
from as_fit import of_rank_0, same_weights
from rank_tests import with_ranks

from numba_kernels import Team
from tutorial_dl import Trainer, data

pytestmark = pytest.mark.xdist_group("keras")

# Ranks have 5 and 6 samples of a batch, and 1 and 0 of the last
SAMPLES, BATCH, RATE, EPOCHS = 45, 11, 0.3, 2


def arrays():
    dice = np.random.default_rng(5)
    x = dice.standard_normal((SAMPLES, 4)).astype(np.float32)
    y = (x[:, 0] > 0.7).astype(np.int64)
    return x, y, dice.uniform(0, 3, SAMPLES).astype(np.float32)


def classifier():
    import keras

    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    sgd, accuracy = keras.optimizers.SGD(RATE), ["accuracy"]
    loss = "sparse_categorical_crossentropy"
    model.compile(sgd, loss, metrics=accuracy, weighted_metrics=accuracy)
    return model


def eager():
    model = classifier()
    model.run_eagerly = True
    return model


def of_dicts():
    """A model of two inputs and two outputs, by name."""
    import keras

    keras.utils.set_random_seed(2)
    one, two = keras.Input((4,), name="one"), keras.Input((1,), name="two")
    both = keras.layers.Concatenate()([one, two])
    named = {name: keras.layers.Dense(1, name=name)(both) for name in ("a", "b")}
    model = keras.Model({"one": one, "two": two}, named)
    model.compile(keras.optimizers.SGD(0.02), {"a": "mse", "b": "mae"})
    return model


TEXTS = np.array(["a cat", "a dog and a cat", "äöü dog", "", "dog dog dog"])[np.arange(SAMPLES) % 5]


def of_text(*layers, mask_zero=False, **options):
    """A model that reads texts, and gives two probabilities."""
    import keras

    keras.utils.set_random_seed(2)
    words = keras.layers.TextVectorization(output_sequence_length=4, vocabulary=["a", "cat", "dog"])
    outputs = inputs = keras.Input((1,), dtype="string")
    for layer in (words, keras.layers.Embedding(6, 3, mask_zero=mask_zero), *layers):
        outputs = layer(outputs)
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(outputs))
    model.compile(keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy", **options)
    return model


def reader_of_text():
    import keras

    return of_text(keras.layers.Flatten(), metrics=["accuracy"])


def tagger_of_text():
    """Its outputs have a mask, so a rank without samples takes part in each step."""
    return of_text(mask_zero=True)


def tf_data(*parts):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)


def py_dataset(*parts, **options):
    import keras

    class Batches(keras.utils.PyDataset):
        ends = 0

        def __len__(self):
            return -(-SAMPLES // BATCH)

        def __getitem__(self, i):
            if not 0 <= i < len(self):
                raise IndexError(f"there is no batch {i}")
            return tuple(part[i * BATCH : (i + 1) * BATCH] for part in parts)

        def on_epoch_end(self):
            self.ends += 1

    return Batches(**options)


def generator(*parts):
    for first in range(0, SAMPLES, BATCH):
        yield tuple(part[first : first + BATCH] for part in parts)


def same(make, ours, theirs, epochs=EPOCHS, kept=None, steps=None, **options):
    """Training on `ours` by the ranks is `fit` on `theirs`: weights, and all columns."""
    model, expected = make(), make()
    given = ours if kept is None else (ours, kept[0])
    trainer = Trainer(model, given, progress=False, shuffle=False, **options)
    history = trainer.fit(epochs)
    options |= dict(epochs=epochs, shuffle=False, verbose=0, steps_per_epoch=steps)
    options["validation_data"] = None if kept is None else kept[1]
    right = of_rank_0(expected, lambda: expected.fit(theirs, **options).history)
    same_weights(model, expected, 1e-6)
    assert right.keys() <= history.last.keys()
    # `fit` takes the mean of several outputs' losses over batches; ours are over samples.
    for name in right.keys() - {"a_loss", "b_loss"}:
        assert history.column(name) == pytest.approx(right[name], rel=1e-5), name
    assert (kept is not None) == any(name.startswith("val_") for name in history.last)
    return trainer, expected


@pytest.mark.thorough
@with_ranks(2, keras=True)
def test_two_ranks_train_on_streams_as_fit_does():
    rank = Team().rank
    x, y, w = arrays()
    part = slice(20, None)
    plain, weighted = tf_data(x, y), tf_data(x, y, w)
    kept = tf_data(x[part], y[part])
    trainer, model = same(classifier, plain, plain, kept=(kept, kept))
    found, right = trainer.evaluate(weighted), model.evaluate(weighted, verbose=0, return_dict=True)
    assert {n: found[n] for n in right} == pytest.approx(right, rel=1e-5)
    outputs = model.predict(plain, verbose=0)
    np.testing.assert_allclose(trainer.predict(plain), outputs, atol=1e-6)
    of_arrays = (x[part], y[part], w[part])
    same(classifier, weighted, weighted, kept=(of_arrays, of_arrays))
    same(classifier, plain, plain, class_weight={1: 5.0})

    shuffled = plain.unbatch().shuffle(SAMPLES, seed=7).batch(BATCH)  # another order in each epoch
    again = plain.unbatch().shuffle(SAMPLES, seed=7).batch(BATCH)
    same(classifier, shuffled, again)
    endless = weighted.repeat()
    same(classifier, data.stream(endless, steps=3), endless, steps=3)

    for workers in (1, 3):
        mine, theirs = py_dataset(x, y, w, workers=workers), py_dataset(x, y, w)
        same(classifier, mine, theirs, kept=(kept, kept))
        assert mine.ends == (EPOCHS if rank == 0 else 0)

    same(classifier, lambda: generator(x, y, w), generator(x, y, w), epochs=1)
    both = {"one": x, "two": w[:, None]}, {"a": x[:, :1], "b": w[:, None]}
    same(of_dicts, tf_data(*both), tf_data(*both))
    same(reader_of_text, tf_data(TEXTS[:, None], y), tf_data(TEXTS[:, None], y))
    tagged = TEXTS[:, None], np.stack([y, 1 - y, y, y], axis=1)
    same(tagger_of_text, tf_data(*tagged), tf_data(*tagged))
    read = py_dataset(TEXTS[:, None], y, workers=2)
    same(reader_of_text, read, tf_data(TEXTS[:, None], y))


@with_ranks(3, keras=True)
def test_three_ranks_train_on_a_stream():
    """Of 3 ranks, two have none of the last batch."""
    x, y, w = arrays()
    same(eager, py_dataset(x, y, w, workers=2), py_dataset(x, y, w))


@with_ranks(2, keras=True)
def test_any_order_is_the_same_on_all_ranks():
    """A PyDataset's batches are shuffled by seed and epoch; a random order is rank 0's."""
    team = Team()
    x, y, _ = arrays()
    model, expected, dataset = classifier(), classifier(), py_dataset(x, y)
    Trainer(model, dataset, seed=4, progress=False).fit(EPOCHS)
    orders = [np.random.default_rng((4, epoch)).permutation(len(dataset)) for epoch in range(2)]
    assert (orders[0] != orders[1]).any()

    def train():
        for i in np.concatenate(orders):
            expected.train_on_batch(*dataset[int(i)])

    of_rank_0(expected, train)
    same_weights(model, expected, 1e-6)

    # The sum of all inputs of an epoch shows that each sample was seen once.
    unseeded, model = tf_data(x, y).unbatch().shuffle(SAMPLES).batch(BATCH), classifier()
    trainer, seen = Trainer(model, unseeded, progress=False), []
    compute = trainer.replica.compute_gradient

    def counting(batch, **options):
        seen.append(np.asarray(batch[0]))
        return compute(batch, **options)

    trainer.replica.compute_gradient = counting
    trainer.fit(1)
    mine = np.concatenate(seen)
    found = np.concatenate([np.ravel(row) for row in team.allgather(mine.ravel())]).reshape(-1, 4)
    assert (found != x).any()
    np.testing.assert_array_equal(found[np.lexsort(found.T)], x[np.lexsort(x.T)])
    rows = team.allgather(trainer.replica.parameters)
    assert (rows == rows[0]).all()


@with_ranks(2, keras=True)
def test_what_is_wrong_is_one_line():
    import tensorflow as tf

    x, y, _ = arrays()
    plain = tf_data(x, y)
    broken = plain.map(lambda x, y: (tf.debugging.check_numerics(x / 0.0, "here"), y))
    ragged = tf.data.Dataset.from_tensors((tf.ragged.constant([[1.0], [1.0, 2.0]]), [0, 1]))
    for made, words in (
        (plain.repeat(), "the tf.data.Dataset never ends: give the number of batches per epoch"),
        (plain.skip(100), "the tf.data.Dataset has no batches"),
        (ragged, r"batch 1 .* inputs is a RaggedTensor: expected an array, .* x.to_tensor\(\)"),
        (tf.data.Dataset.range(3), r"batch 1 .*: inputs is int64 of shape \(\)"),
        (broken, "batch 1 of epoch 1: InvalidArgumentError: .*here"),
    ):
        with pytest.raises(data.DataError, match=words) as caught:
            Trainer(classifier(), made, progress=False).fit(1)
        assert "\n" not in str(caught.value)
