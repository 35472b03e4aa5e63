"""Shapes of Horovod scripts beside horovod_script.py, in our words and on small data.

They follow Horovod's own examples and the teaching scripts of computing centres (ALCF, KISTI,
NERSC): which calls a script makes, in which order, and on which ranks. horovod_checks.py runs all
of them on three ranks. Each returns its model and its losses; the ranks must end with the same
weights and a lower loss. Where one process could do the same, rank 0 trains a plain Keras model,
with batches of all ranks.
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from horovod_networks import in_folder
from sklearn.datasets import load_digits

import tutorial_dl.horovod.keras as hvd_keras
import tutorial_dl.horovod.tensorflow as hvd_tf
import tutorial_dl.horovod.tensorflow.keras as hvd

BATCH, STEPS = 8, 6  # samples per rank and step; steps per epoch


def digits():
    x, y = load_digits(return_X_y=True)
    n = BATCH * STEPS * hvd.size()
    return (x[:n] / 16).astype("float32"), y[:n].astype("int64")


def network(seed=None):
    """Without a seed, weights differ between ranks, as in scripts that set none."""
    keras.utils.set_random_seed(1 + hvd.rank() if seed is None else seed)
    inputs = keras.Input((64,))
    hidden = keras.layers.Dense(16, "relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(10, "softmax")(hidden))


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy()


def shard():
    """Every rank's own batches: tf.data's shard takes every size()-th sample."""
    dataset = tf.data.Dataset.from_tensor_slices(digits())
    return dataset.shard(hvd.size(), hvd.rank()).batch(BATCH).prefetch(1)


def same_as_one_process(model, train) -> None:
    """On rank 0, compare with the plain Keras model that `train()` returns."""
    if hvd.rank() == 0:
        for ours, theirs in zip(model.get_weights(), train().get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=2e-5)


@in_folder
def resumed_imagenet(folder):
    """Checkpoints in .h5, as for ImageNet: half the epochs, then a second job that resumes.

    Rank 0 alone finds and loads the checkpoint; warm-up and schedule go on where they were.
    """
    size, epochs = hvd.size(), 4
    file = str(folder / "checkpoint-{epoch}.h5")
    rate, warm = 0.02 * size, 2

    def generator():
        while True:
            yield from shard().as_numpy_iterator()

    def job(until):
        found = range(epochs, 0, -1) if hvd.rank() == 0 else ()
        at = next((e for e in found if Path(file.format(epoch=e)).exists()), 0)
        at = hvd_keras.broadcast(at, 0, name="resume_from_epoch")
        if at > 0 and hvd.rank() == 0:
            model = hvd_keras.load_model(
                file.format(epoch=at), compression=hvd_keras.Compression.none
            )
        else:
            model = network()
            optimizer = keras.optimizers.SGD(rate, momentum=0.9)
            model.compile(hvd_keras.DistributedOptimizer(optimizer), cross_entropy())
        schedule = hvd_keras.callbacks.LearningRateScheduleCallback
        callbacks = [
            hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd_keras.callbacks.MetricAverageCallback(),
            hvd_keras.callbacks.LearningRateWarmupCallback(
                initial_lr=rate, warmup_epochs=warm, verbose=1 if hvd.rank() == 0 else 0
            ),
            schedule(initial_lr=rate, multiplier=1.0, start_epoch=warm, end_epoch=3),
            schedule(initial_lr=rate, multiplier=lambda epoch: 1e-1, start_epoch=3),
        ]
        if hvd.rank() == 0:
            callbacks.append(keras.callbacks.ModelCheckpoint(file))
        history = model.fit(
            generator(), steps_per_epoch=STEPS, epochs=until, initial_epoch=at,
            callbacks=callbacks, verbose=0,
        )  # fmt: skip
        hvd.barrier()
        return model, history.history["loss"]

    _, before = job(until=2)
    model, after = job(until=epochs)
    assert len(after) == 2

    def alone():
        """The same rates in closed form; velocities change with the rate (Goyal et al.)."""
        plain, optimizer = network(seed=1), keras.optimizers.SGD(rate, momentum=0.9)
        plain.compile(optimizer, cross_entropy())
        x, y = digits()
        batch, old = BATCH * size, rate
        for epoch in range(epochs):
            for step in range(STEPS):
                part = (epoch + (step + 1) / STEPS) / warm
                new = rate * ((part * (size - 1) + 1) / size if epoch < warm else 1)
                new *= 0.1 if epoch >= 3 else 1
                optimizer.learning_rate = new
                for velocity in getattr(optimizer, "momentums", []):
                    velocity.assign(velocity * (new / old))
                old, first = new, step * batch
                plain.train_on_batch(x[first : first + batch], y[first : first + batch])
        return plain

    same_as_one_process(model, alone)
    return model, [*before, *after]


def elastic_tape():
    """A loop of its own in `elastic.run`, with a state that has objects, too."""
    model, loss, optimizer = network(), cross_entropy(), keras.optimizers.Adam(0.001 * hvd.size())

    @tf.function
    def training_step(images, labels, allreduce=True):
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        if allreduce:
            tape = hvd_tf.DistributedGradientTape(tape)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    for images, labels in shard().take(1):
        training_step(images, labels, allreduce=False)
    failed = []

    @hvd_tf.elastic.run
    def train(state):
        for batch, (images, labels) in enumerate(shard().repeat().skip(state.batch), state.batch):
            if batch == 60 // hvd_tf.size():
                return
            if hvd_tf.rank() == hvd_tf.size() - 1 and batch == 7 and not failed:
                failed.append(batch)
                raise hvd_tf.elastic.HorovodInternalError("a device is lost")
            state.losses.append(float(training_step(images, labels)))
            state.batch = batch + 1
            if state.batch % 5 == 0:
                state.commit()

    state = hvd_tf.elastic.TensorFlowKerasState(model, optimizer, batch=0, losses=[])
    state.register_reset_callbacks([lambda: optimizer.learning_rate.assign(0.001 * hvd_tf.size())])
    train(state)
    assert len(state.losses) == state.batch == 20
    assert int(optimizer.iterations) == 21
    return model, state.losses


SHAPES = [resumed_imagenet, elastic_tape]
