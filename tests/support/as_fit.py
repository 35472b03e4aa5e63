"""Whether a Trainer does with a Keras model what `fit` does, batch for batch."""

import numpy as np
import pytest


def as_fit(make, train, kept, team, batch_size=16, epochs=2, near=2e-6):
    """Assert that weights, losses and metrics are those of `fit`. Collective.

    Args:
        make: A function that makes the compiled model, always the same.
        train, kept: (x, y) for training and for validation, the same on all ranks.
        near: Largest difference of weights and of metrics.
    """
    from tutorial_dl import Trainer

    mine, theirs = make(), make()
    theirs.run_eagerly = True  # a graph takes longer to make than a few steps
    options = dict(batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    (x, y), (x_kept, y_kept) = ((as_keras_has_it(x), y) for x, y in (train, kept))
    expected = theirs.fit(
        x, y, validation_data=(x_kept, y_kept), validation_batch_size=batch_size, **options
    ).history
    trainer = Trainer(
        mine, (train, kept), team=team, batch_size=batch_size, shuffle=False, progress=False
    )
    history = trainer.fit(epochs)
    for a, b in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=near)
    for column, values in expected.items():
        assert history.column(column) == pytest.approx(values, rel=5e-6, abs=near), column
    return history


def as_keras_has_it(x):
    """`fit` takes text as a tensor only."""
    import tensorflow as tf

    return tf.constant(x) if x.dtype.kind == "U" else x
