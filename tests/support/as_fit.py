"""Whether a Trainer does with a Keras model what `fit` does, batch for batch."""

import time

import numpy as np
import pytest

TAG = 17  # of its messages


def as_fit(make, train, kept, team, batch_size=16, epochs=2, near=2e-6):
    """Assert that weights, losses and metrics are those of `fit`. Collective.

    Args:
        make: A function that makes the compiled model, always the same.
        train, kept: (x, y) for training and for validation, the same on all ranks.
        near: Largest difference of weights and of metrics.
    """
    from tutorial_dl import Trainer

    mine, theirs = make(), make()
    options = dict(batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    (x, y), (x_kept, y_kept) = ((as_keras_has_it(x), y) for x, y in (train, kept))
    options |= dict(validation_data=(x_kept, y_kept), validation_batch_size=batch_size)
    expected = of_rank_0(theirs, lambda: theirs.fit(x, y, **options).history, team.size == 1)
    trainer = Trainer(
        mine, (train, kept), team=team, batch_size=batch_size, shuffle=False, progress=False,
        validation_batch_size=batch_size,
    )  # fmt: skip
    history = trainer.fit(epochs)
    same_weights(mine, theirs, near)
    for column, values in expected.items():
        assert history.column(column) == pytest.approx(values, rel=5e-6, abs=near), column
    return history


def same_weights(model, other, near):
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=near)


def by_batches(model, train, kept, batch_size, epochs) -> dict:
    """Plain Keras trains on the batches in a Trainer's order (seed 5); its metrics of `kept`."""
    from tutorial_dl.data import Batches

    def there(targets):
        return targets if isinstance(targets, dict | tuple) or len(targets) else None

    def trained():
        for epoch in range(epochs):
            for x, y, *weights in Batches(train, batch_size, seed=5).epoch(epoch):
                model.train_on_batch(x, there(y), *weights)
        options = dict(sample_weight=kept.weights, verbose=0, return_dict=True)
        return model.evaluate(kept.inputs, there(kept.targets), len(kept), **options)

    return of_rank_0(model, trained)


def as_by_batches(make, data, batch_size, epochs, right=None, weighted=None, **options):
    """Assert that a Trainer ends with plain Keras's weights and metrics. Collective.

    right: (the metrics, Keras's model), if these are known; weighted: the training data of Keras
    """
    from tutorial_dl import Trainer
    from tutorial_dl.data import dataset_of

    if right is None:
        dataset, expected = dataset_of(data), make()
        train = weighted or dataset.train
        right = by_batches(expected, train, dataset.validation, batch_size, epochs), expected
    values, expected = right
    model = make()
    options |= dict(batch_size=batch_size, seed=5, progress=False)
    trainer = Trainer(model, data, **options)
    history = trainer.fit(epochs)
    same_weights(model, expected, 2e-6)
    for found in (trainer.evaluate(), {n: history.last[f"val_{n}"] for n in values}):
        assert {n: found[n] for n in values} == pytest.approx(values, rel=1e-5)
    return model, right


def of_rank_0(model, train, alone=False):
    """What `train()`, plain Keras's training of `model`, returns on rank 0; all get the weights.

    It would be the same on all ranks, which share the processors. Collective, unless `alone`.
    """
    from mpi4py import MPI

    comm = MPI.COMM_SELF if alone else MPI.COMM_WORLD
    model.run_eagerly = True  # a graph takes longer to make than a few steps
    if comm.rank == 0:
        found = train(), model.get_weights()
        for rank in range(1, comm.size):
            comm.send(found, rank, TAG)
    else:
        while not comm.Iprobe(0, TAG):  # a receive would keep a processor busy meanwhile
            time.sleep(0.005)
        found = comm.recv(source=0, tag=TAG)
    model.set_weights(found[1])
    return found[0]


def as_keras_has_it(x):
    """`fit` takes text as a tensor only."""
    import tensorflow as tf

    return tf.constant(x) if x.dtype.kind == "U" else x
