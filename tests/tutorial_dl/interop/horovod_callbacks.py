"""Checks of tutorial_dl.horovod's callbacks; horovod_checks.py calls them on every rank."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod_networks import (
    BATCH,
    OPTIMIZERS,
    STEPS,
    equal_everywhere,
    fit,
    in_folder,
    network,
    same_as,
    samples,
    serial,
)

import tutorial_dl.horovod.tensorflow.keras as hvd


def metrics_are_averaged():
    seen = {}
    model, (_, part) = network(), samples()
    own = model.evaluate if model.compiled else None
    assert own is None
    last = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.update(logs))
    history = fit(
        model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), part, BATCH, 1,
        [hvd.callbacks.MetricAverageCallback(), last],
    ).history  # fmt: skip
    x, y = samples()[0]  # with learning rate 0, and equally many samples per rank
    error = model(x) - y
    assert seen["loss"] == history["loss"][0]
    assert seen["loss"] == pytest.approx(float(np.mean(np.square(error))), rel=1e-5)
    assert seen["mae"] == pytest.approx(float(np.mean(np.abs(error))), rel=1e-5)


def learning_rates():
    """Learning rates follow the documented formulas in every step."""
    size, rates = hvd.size(), []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
    )
    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=2, end_epoch=4),
        hvd.callbacks.LearningRateScheduleCallback(0.4, lambda e: 1 / e, 4, staircase=False),
        hvd.callbacks.LearningRateWarmupCallback(0.3, warmup_epochs=0),  # nothing
        note,
    ]
    model = network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.4 / size))
    logs = fit(model, optimizer, samples()[1], BATCH, 5, callbacks).history
    warm = [0.4 / size * ((e + 1 / STEPS) * (size - 1) / 2 + 1) for e in np.arange(6) / STEPS]
    then = [0.4] * 3 + [0.2] * 3 + [0.4 / e for e in 4 + np.arange(3) / STEPS]
    np.testing.assert_allclose(rates, warm + then, rtol=1e-6)
    np.testing.assert_allclose(logs["lr"], rates[STEPS - 1 :: STEPS], rtol=1e-6)
    with pytest.raises(ValueError, match="initial_lr must be the learning rate at the start"):
        hvd.callbacks.LearningRateScheduleCallback(None, 1.0)


def momentum_is_corrected():
    """The paper's velocity' = m (new / old) velocity - new g holds on a loss of constant slope."""
    for correct in (True, False):
        inputs = keras.Input((1,))
        outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
        model = keras.Model(inputs, outputs)
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5)),
            lambda y, out: out,
        )
        schedule = hvd.callbacks.LearningRateScheduleCallback(
            0.1, lambda epoch: 1 / (1 + epoch), momentum_correction=correct
        )
        model.fit(np.ones((2, 1)), np.ones(2), 1, epochs=3, verbose=0, callbacks=[schedule])
        weight = velocity = 0.0
        old = 0.1
        for step in range(6):
            rate = 0.1 / (1 + step // 2)
            velocity = 0.5 * velocity * (rate / old if correct else 1) - rate
            weight, old = weight + velocity, rate
        np.testing.assert_allclose(model.weights[0], [[weight]], rtol=1e-5)


@in_folder
def checkpoints_and_loading(folder):
    """Rank 0 writes; a loaded model has the optimizer's state, and all ranks train it."""
    best = folder / f"best-{hvd.rank()}.keras"
    model, (_, part) = network(), samples()
    make = OPTIMIZERS["adam"]
    fit(
        model, hvd.DistributedOptimizer(make()), part, BATCH, 1,
        [hvd.callbacks.BestModelCheckpoint("loss", filepath=str(best))],
    )  # fmt: skip
    hvd.barrier()
    assert [p.name for p in folder.iterdir()] == ["best-0.keras"]
    for only, name in ((False, "best_model.keras"), (True, "best_model.weights.h5")):
        assert hvd.callbacks.BestModelCheckpoint(save_weights_only=only).filepath == name
    plain = keras.saving.load_model(folder / "best-0.keras")  # its plain optimizer
    assert type(plain.optimizer) is keras.optimizers.Adam and not hasattr(
        plain.optimizer, "horovod"
    )
    again = hvd.load_model(str(folder / "best-0.keras"))
    assert again.optimizer.horovod is not None
    for ours, theirs in zip(again.optimizer.variables, plain.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    again.fit(*part, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    same_as(again, serial(make()))  # 1 epoch and 1 more


@in_folder
def loaded_by_rank_0_alone(folder):
    """As Horovod's examples do: rank 0 loads an .h5 file, and its state is broadcast."""
    make, (_, part), file = OPTIMIZERS["adam"], samples(), folder / "checkpoint.h5"

    def train(model):
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(*part, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, callbacks=[start])

    def compiled():
        model = network(seed=hvd.rank())
        # (Keras can't load the text "mse" from an .h5 file.)
        model.compile(hvd.DistributedOptimizer(make()), keras.losses.MeanSquaredError())
        return model

    model = compiled()
    train(model)
    if hvd.rank() == 0:
        model.save(file)
    again = hvd.load_model(str(file)) if hvd.rank() == 0 else compiled()
    train(again)
    same_as(again, serial(make()))  # 1 epoch and 1 more


def start_as_rank_0():
    """Ranks start with rank 0's weights, optimizer slots and step count, and their own seeds."""
    rank = hvd.rank()
    inputs = keras.Input((6,))
    keras.utils.set_random_seed(rank)
    local = keras.layers.Dense(6)
    x = keras.layers.Dropout(0.5)(local(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.BatchNormalization()(x)))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.0))
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(rank)
    for v in model.non_trainable_weights:
        v.assign(tf.fill(v.shape, 1.0 + rank))
    kernel = local.kernel.numpy()
    seeds = [v.numpy() for v in model.non_trainable_variables if "seed" in v.path]
    model.compile(optimizer, "mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[local.kernel])
    callback.set_model(model)
    callback.on_train_begin()
    assert int(optimizer.iterations) == 0
    np.testing.assert_array_equal(local.kernel, kernel)
    for v in model.non_trainable_weights:
        np.testing.assert_array_equal(v, np.ones(v.shape))
    after = [v.numpy() for v in model.non_trainable_variables if "seed" in v.path]
    assert len(seeds) == 1 and (seeds[0] == after[0]).all()
    everyone = hvd.allgather(model.layers[-1].kernel[tf.newaxis])
    assert (everyone == everyone[0]).numpy().all()
    # This model has no weights before its first batch.
    late = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2)])
    keras.utils.set_random_seed(rank)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    fit(late, sgd, samples()[1], BATCH, 1, [callback])
    equal_everywhere(late)


def weights_are_compared():
    """A rate that one rank alone lowers is found after the epoch in which weights differ."""

    def trained(**options):
        model = network()
        own = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + hvd.rank()))
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0, **options)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        fit(model, optimizer, samples()[1], BATCH, 1, [start, own])
        return model

    if hvd.size() == 1:
        return
    said = r"after epoch 1, ranks differ in the learning rate: .*MetricAverageCallback.* before it"
    with pytest.raises(RuntimeError, match=said):
        trained()
    weights = hvd.allgather(trained(check_weights=False).weights[0][tf.newaxis])
    assert (weights[0] != weights[1]).numpy().any()


CHECKS = [
    weights_are_compared, metrics_are_averaged, learning_rates, momentum_is_corrected,
    checkpoints_and_loading, loaded_by_rank_0_alone, start_as_rank_0,
]  # fmt: skip
