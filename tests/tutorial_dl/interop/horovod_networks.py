"""Small networks for the checks of tutorial_dl.horovod, trained by all ranks and by one rank.

p ranks are compared with one: rank 0 also trains a plain Keras model on the whole batches.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np

import tutorial_dl.horovod.tensorflow.keras as hvd

BATCH, STEPS = 4, 3  # samples per rank and step


def in_folder(check):
    """`check`, called with a folder that rank 0 makes, and removes."""

    @functools.wraps(check)
    def within():
        folder = Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0))
        found = check(folder)
        hvd.barrier()
        if hvd.rank() == 0:
            shutil.rmtree(folder)
        return found

    return within


def network(seed=0, **options):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6,))
    x = keras.layers.Dense(8, "tanh", **options)(inputs)
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def embedding(seed=0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((3,), dtype="int64")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 4)(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def samples(words=False):
    """The whole data, and this rank's part of every global batch."""
    random, size = np.random.default_rng(3), hvd.size()
    n = STEPS * BATCH * size
    x = random.integers(0, 20, (n, 3)) if words else random.standard_normal((n, 6))
    y = random.standard_normal((n, 2)).astype("float32")
    x = x if words else x.astype("float32")
    parts = [a.reshape(STEPS, size, BATCH, -1)[:, hvd.rank()] for a in (x, y)]
    return (x, y), tuple(part.reshape(STEPS * BATCH, -1) for part in parts)


def fit(model, optimizer, data, batch, epochs=2, callbacks=(), **options):
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    return model.fit(
        *data, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
    )


def on_rank_0(train):
    """Rank 0's weights of the model that `train()` returns, on all ranks."""
    return hvd.broadcast_object(train().get_weights() if hvd.rank() == 0 else None, 0)


def serial(optimizer, make=network, epochs=2):
    """The weights of a plain Keras model after training on all samples."""

    def train():
        model = make()
        whole, _ = samples(make is embedding)
        # A graph takes longer to make than a few steps.
        fit(model, optimizer, whole, BATCH * hvd.size(), epochs, run_eagerly=True)
        return model

    return on_rank_0(train)


def distributed(optimizer, make=network, epochs=2, **options):
    """The weights after training on all ranks, which take rank 0's first weights."""
    model = make(seed=hvd.rank())
    _, part = samples(make is embedding)
    start = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    fit(model, optimizer, part, BATCH, epochs, start, **options)
    return model


def equal_everywhere(model, also=()):
    """The model's weights, which must have the same bits on all ranks."""
    weights = np.concatenate([np.ravel(v) for v in [*model.weights, *also]]).astype("float64")
    everyone = hvd.allgather(weights[np.newaxis]).numpy()
    assert (everyone == everyone[0]).all()
    return weights


def same_as(model, expected, error=1e-5, also=True):
    equal_everywhere(model, model.optimizer.variables if also else [])
    for ours, theirs in zip(model.weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=error, atol=error)
        assert np.abs(theirs).max() > 0


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05),
    "adamw": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5), weight_decay=0.1, clipnorm=0.02
    ),
}
