"""A script as Horovod's documentation teaches it, with other import lines.

    mpiexec -n 2 python horovod_script.py FOLDER --batch 32 --rate 0.05
    python horovod_script.py FOLDER --batch 64 --rate 0.1                # the same, on one process

It trains with `model.fit`, and again with its own loop. Each rank writes its weights to FOLDER.
"""

import argparse
import os

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tutorial_dl.horovod.tensorflow as hvd_tf
import tutorial_dl.horovod.tensorflow.keras as hvd

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--batch", type=int)
parser.add_argument("--rate", type=float)
options = parser.parse_args()

# Horovod: initialize Horovod.
hvd.init()

# Horovod: pin GPU to be used to process local rank (one GPU per process)
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

# Horovod: every rank has every size()-th sample.
digits, labels = load_digits(return_X_y=True)
x = (digits[:1536] / 16).astype("float32")[hvd.rank() :: hvd.size()]
y = labels[:1536][hvd.rank() :: hvd.size()]


def network():
    inputs = keras.Input((64,))
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(hidden))


def keep(model, name):
    np.savez(os.path.join(options.folder, f"{name}-{hvd.rank()}.npz"), *model.get_weights())


def with_fit():
    keras.utils.set_random_seed(hvd.rank())  # weights differ; rank 0's are used
    model = network()

    # Horovod: adjust learning rate based on number of GPUs, add Horovod DistributedOptimizer.
    scaled_lr = options.rate * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(scaled_lr, momentum=0.9), backward_passes_per_step=1
    )
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    callbacks = [
        # Horovod: broadcast initial variable states from rank 0 to all other processes.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Horovod: average metrics among workers at the end of every epoch.
        hvd.callbacks.MetricAverageCallback(),
    ]
    # Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
    if hvd.rank() == 0:
        file = os.path.join(options.folder, "checkpoint-{epoch}.keras")
        callbacks.append(keras.callbacks.ModelCheckpoint(file))
    # Horovod: write logs on worker 0.
    history = model.fit(
        x, y, batch_size=options.batch, callbacks=callbacks, epochs=3, shuffle=False,
        verbose=2 if hvd.rank() == 0 else 0,
    )  # fmt: skip
    keep(model, "fit")
    if hvd.rank() == 0:
        print(f"accuracy {history.history['accuracy'][-1]:.4f}")


def with_a_loop_of_its_own():
    keras.utils.set_random_seed(1)
    model, loss = network(), keras.losses.SparseCategoricalCrossentropy()
    optimizer = keras.optimizers.Adam(0.002)

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            loss_value = loss(labels, model(images, training=True))
        # Horovod: add Horovod Distributed GradientTape.
        tape = hvd_tf.DistributedGradientTape(tape)
        gradients = tape.gradient(loss_value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        # Horovod: broadcast initial variable states from rank 0 to all other processes, after the
        # first gradient step to ensure optimizer initialization.
        if first_batch:
            hvd_tf.broadcast_variables(model.variables, root_rank=0)
            hvd_tf.broadcast_variables(optimizer.variables, root_rank=0)
        return loss_value

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(options.batch)
    for step, (images, targets) in enumerate(dataset.take(48)):
        value = training_step(images, targets, step == 0)
        if step % 16 == 0 and hvd.local_rank() == 0:
            print(f"Step #{step}\tLoss: {float(value):.6f}")
    keep(model, "loop")


with_fit()
with_a_loop_of_its_own()
