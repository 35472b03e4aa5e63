"""Pipelines of Keras models compute what the whole model computes; what can't be is refused."""

from pathlib import Path

import numpy as np
import pytest
from divided_models import with_shared_weights
from keras_networks import keras, layers

from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, models, replica
from tutorial_dl.model_parallel import Grid, PipelinedReplica

pytestmark = pytest.mark.xdist_group("keras")

TEXT = data.text(length=10, characters=3000)
RANDOM = np.random.default_rng(3)
IMAGES, LABELS = RANDOM.standard_normal((13, 6, 6, 1)).astype("f4"), RANDOM.integers(0, 3, 13)


def gpt():
    return models.gpt(TEXT, seed=1, width=16, heads=2, blocks=1), TEXT.train.take(slice(0, 13))


def skipping():
    """A boundary has several tensors: one input and one activation go around the middle."""
    image, words = keras.Input((6, 6, 1), name="image"), keras.Input((4,), name="words")
    early = layers.Dense(5, "tanh", name="early")(words)
    x = layers.Conv2D(3, 3, activation="relu", name="convolution")(image)
    x = layers.Dense(6, "tanh", name="middle")(layers.Flatten(name="flat")(x))
    x = layers.Concatenate(name="together")([x, early, words])
    model = keras.Model([image, words], layers.Dense(2, name="last")(x))
    model.compile(loss="mse")
    x = IMAGES, RANDOM.standard_normal((13, 4)).astype("f4")
    return model, (x, RANDOM.standard_normal((13, 2)).astype("f4"))


def start(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def convolutional():
    chain = [
        keras.Input((6, 6, 1)),
        layers.Conv2D(4, 3, activation="relu", kernel_initializer=start(1), name="convolution"),
        layers.MaxPooling2D(name="pool"),
        layers.Flatten(name="flat"),
        layers.Dense(8, "relu", kernel_initializer=start(2), name="dense"),
        layers.Dense(3, "softmax", kernel_initializer=start(3), name="last"),
    ]
    model = keras.Sequential(chain)
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, (IMAGES, LABELS)


@pytest.mark.thorough(but="convolutional-cut2")
@pytest.mark.parametrize(
    ("build", "cut"),
    [
        (gpt, ["block_1_norm_2", "norm"]),
        (skipping, ["middle", "last"]),
        (convolutional, ["dense", "last"]),
    ],
)
def test_stages_are_the_whole_model(build, cut):
    """Three stages on one rank, B and W together or apart, and B with activations anew."""
    model, batch = build()
    whole = replica.of(model)
    loss, _ = whole.compute_gradient(batch)
    gradient, weights, found = (
        whole.gradient.copy(),
        whole.parameters.copy(),
        whole.predict(batch[0]),
    )
    metrics = whole.evaluate([batch])
    for apart, recompute in ((False, False), (True, False), (True, True)):
        again = replica.of(model)
        again.parameters[:] = weights
        parts = PipelinedReplica(
            again, Grid(Team(), 1), "interleaved", 4, 3, cut, batch[0], recompute
        )
        for stage in parts.pipeline.stages:
            stage.apart = apart
        assert parts.compute_gradient(batch) == (pytest.approx(loss, rel=1e-5), 13)
        size = np.abs(gradient).max()
        np.testing.assert_allclose(parts.gradient, gradient, rtol=0, atol=1e-5 * size)
        assert parts.evaluate([batch]) == pytest.approx(metrics, rel=1e-5)
        np.testing.assert_allclose(parts.predict(batch[0]), found, rtol=1e-4, atol=1e-6)


def test_two_ranks_train_and_save_as_one(on_ranks, tmp_path):
    on_ranks(2, trains, str(tmp_path), keras=True)


def trains(folder):
    """gpt and a convolutional network, by each schedule; the file is a plain .keras file.

    Rank 0 also trains alone, and compares all weights with those in the file.
    """
    for build, schedule in ((gpt, "1f1b"), (convolutional, "zb_h1")):
        model, batch = build()
        samples = data.Data.of(*batch)
        dataset = data.Dataset("some", samples, samples, int(batch[1].max()) + 1)
        how = dict(optimizer="sgd", learning_rate=0.1, batch_size=7, progress=False)
        own, alone = Team().split(Team().rank), None
        if Team().rank == 0:
            alone = Trainer(build()[0], dataset, "serial", team=own, **how)
            alone.fit(10)  # of 2 updates, 7 and 6 samples
        grid = Grid(Team(), 2)
        part = PipelinedReplica(replica.of(model), grid, schedule, 3, sample=batch[0][:2])
        found = Trainer(part, dataset, "synchronous", **how)
        found.fit(10)
        found.save(Path(folder, "whole.keras"))
        last = dict(found.history.last)
        found.fit(1)  # the weights still lie where they are trained
        assert found.history.last["loss"] < last["loss"]
        if alone is None:
            continue
        for mine, theirs in zip(found.history.epochs, alone.history.epochs, strict=False):
            for name in ("loss", "val_loss", "val_accuracy"):
                assert mine[name] == pytest.approx(theirs[name], rel=2e-5), name
        loaded = keras.saving.load_model(Path(folder, "whole.keras"))
        for segment, weights in zip(alone.replica.segments, loaded.trainable_weights, strict=True):
            expected = segment.of(alone.replica.parameters)
            size = np.abs(alone.replica.parameters).max()
            np.testing.assert_allclose(weights.numpy(), expected, rtol=0, atol=1e-5 * size)
        outputs = alone.replica.predict(batch[0])
        np.testing.assert_allclose(loaded(batch[0]), outputs, rtol=1e-3, atol=1e-6)


def after(*more, **options):
    """A small model with these layers, compiled."""
    chain = [keras.Input((4,)), layers.Dense(4, name="first"), *more, layers.Dense(1, name="last")]
    model = keras.Sequential(chain)
    model.compile(**{"loss": "mse", **options})
    return model


def test_a_loss_that_a_layer_adds_is_refused():
    class Penalised(layers.Layer):
        makes_no_mask = True

        def call(self, x):
            self.add_loss(0.1 * keras.ops.mean(x**2))
            return x

    x, y = np.ones((4, 4), np.float32), np.ones((4, 1), np.float32)
    model = after(Penalised(name="penalised"))
    with pytest.raises(ValueError, match="layer 'penalised' calls add_loss, which parts of"):
        parts = PipelinedReplica(replica.of(model), Grid(Team(), 1), "gpipe", 2, sample=x[:2])
        parts.compute_gradient((x, y))


def test_what_micro_batches_would_change_is_refused_by_name():
    regular = keras.regularizers.L2(0.1)
    for words, build in {
        "layer 'norm': its statistics are of a batch; use LayerNormalization": (
            lambda: after(layers.BatchNormalization(name="norm"))),
        "layer 'drop': Keras draws its masks batch by batch": (
            lambda: after(layers.Dropout(0.5, name="drop"))),
        "it has regularisers or add_loss": (
            lambda: after(layers.Dense(3, kernel_regularizer=regular))),
        "its weights have constraints": (
            lambda: after(layers.Dense(3, kernel_constraint="non_neg"))),
        "layer 'half': it computes in bfloat16, its weights are float32": (
            lambda: after(layers.Dense(3, dtype="mixed_bfloat16", name="half"))),
        r"metrics \['mae'\]: compile with metrics=\['accuracy'\] or none": (
            lambda: after(metrics=["mae"])),
        r"weights 'shared/kernel' are used by layers 'shared' and 'shared'": with_shared_weights,
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=words) as error:
            PipelinedReplica(replica.of(build()), Grid(Team(), 1), "1f1b", 2, sample=IMAGES[:2])
        assert "\n" not in str(error.value)
