"""Checks of tutorial_dl.horovod's training; horovod_checks.py calls them on every rank."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod_networks import (
    BATCH,
    OPTIMIZERS,
    distributed,
    embedding,
    equal_everywhere,
    fit,
    in_folder,
    network,
    on_rank_0,
    same_as,
    samples,
    serial,
)

import tutorial_dl.horovod.tensorflow as hvd_tf
import tutorial_dl.horovod.tensorflow.keras as hvd


def fit_is_serial_training():
    for name, make in OPTIMIZERS.items():
        optimizer = hvd.DistributedOptimizer(make())
        assert type(optimizer) is type(make())
        same_as(distributed(optimizer, run_eagerly=name == "adamw"), serial(make()))


def options_of_the_optimizer():
    sgd = keras.optimizers.SGD
    whole = serial(sgd(0.1), epochs=1)
    for options in (
        {"gradient_predivide_factor": 2.0, "num_groups": 3},
        {"groups": 2, "name": "mine", "device_dense": "/cpu:0"},
    ):  # fmt: skip
        plain = sgd(0.1)
        optimizer = hvd.DistributedOptimizer(plain, **options)
        assert optimizer.name == options.get("name", plain.name)
        same_as(distributed(optimizer, epochs=1), whole)
    # Sum acts like a learning rate that is p times larger. bf16 rounds to 8 bits.
    rough = hvd_tf.DistributedOptimizer(
        sgd(0.1 / hvd.size()), op=hvd.Sum, compression=hvd.Compression.bf16
    )
    rough = distributed(rough, epochs=1)
    same_as(rough, whole, 1e-2)
    assert any((a != b).numpy().any() for a, b in zip(rough.weights, whole, strict=True))
    for wrong, message in (
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "for op Average"),
        ({"groups": "two"}, "got 'two'"),
        ({"backward_passes_per_step": 0}, "must be at least 1, got 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(sgd(), **wrong)
    with pytest.raises(TypeError, match="expected a Keras 3 optimizer, got a Module"):
        hvd.DistributedOptimizer(tf.Module())
    with pytest.raises(ValueError, match="is already a DistributedOptimizer"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    model = network()
    with pytest.raises(ValueError, match="jit_compile"):
        fit(model, hvd.DistributedOptimizer(sgd()), samples()[1], BATCH, jit_compile=True)


def accumulated_batches():
    """Two passes per step act like one batch of twice the size, also in Adam's step count."""
    (x, y), _ = samples()
    x, y = np.concatenate([x, x]), np.concatenate([y, y])
    both = 2 * BATCH * hvd.size()
    for make, average in (
        (lambda passes: keras.optimizers.SGD(0.1 / passes, momentum=0.9), False),
        (lambda passes: keras.optimizers.Adam(0.01), True),
    ):
        # 2 epochs of 3 batches make updates of batches 1, 2 | 3, 1 | 2, 3.
        ours = hvd.DistributedOptimizer(
            make(2), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        model = distributed(ours)

        def train(make=make):
            expected = network()
            expected.compile(make(1), "mse", run_eagerly=True)
            for at in range(0, len(x), both):
                expected.train_on_batch(x[at : at + both], y[at : at + both])
            return expected

        same_as(model, on_rank_0(train), also=False)  # each rank accumulates its own gradients
        assert int(model.optimizer.iterations) == 3
    with pytest.raises(
        ValueError, match="steps 2, so backward_passes_per_step must be 2 or left out, got 3"
    ):
        twice = keras.optimizers.SGD(gradient_accumulation_steps=2)
        hvd.DistributedOptimizer(twice, backward_passes_per_step=3)


@in_folder
def accumulated_batches_of_a_loaded_model(folder):
    """Training, saving, loading and training on gives the result of one uninterrupted process."""
    file, (_, part) = str(folder / "model.keras"), samples()

    def half():
        return keras.optimizers.SGD(0.1 / 2, momentum=0.9)  # gradients are sums of two batches

    model = distributed(hvd.DistributedOptimizer(half(), backward_passes_per_step=2))
    if hvd.rank() == 0:
        model.save(file)
    hvd.barrier()
    again = hvd.load_model(file, backward_passes_per_step=2)
    plainly = hvd.load_model(file)  # it averages, but it has the same state
    for loaded in (again, plainly):
        for v, saved in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
            if "accumulator" not in v.path:  # the file has rank 0's
                np.testing.assert_array_equal(v, saved)
    again.fit(*part, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)

    def train():
        (x, y), expected = samples()[0], network()
        expected.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", run_eagerly=True)
        x, y = np.concatenate([x] * 4), np.concatenate([y] * 4)
        expected.fit(x, y, batch_size=2 * BATCH * hvd.size(), shuffle=False, verbose=0)
        return expected

    same_as(again, on_rank_0(train), also=False)


def sparse_gradients_of_embeddings():
    sgd = keras.optimizers.SGD
    whole = serial(sgd(0.5), embedding, epochs=1)
    for dense in (False, True):
        optimizer = hvd.DistributedOptimizer(sgd(0.5), sparse_as_dense=dense)
        same_as(distributed(optimizer, embedding, epochs=1), whole)


def ragged_shards_average_ranks_alike():
    """Rank r has r + 1 samples: Horovod takes the mean over ranks, not over samples."""
    rank, size = hvd.rank(), hvd.size()
    random = np.random.default_rng(1)
    data = [
        (random.standard_normal((r + 1, 6)).astype("f"), random.standard_normal((r + 1, 2)))
        for r in range(size)
    ]
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), "mse")
    before = [v.numpy() for v in model.weights]
    gradients = []
    for x, y in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients.append(tape.gradient(loss, model.trainable_variables))
    model.train_on_batch(*data[rank])
    for v, old, *g in zip(model.weights, before, *gradients, strict=True):
        np.testing.assert_allclose(v, old - np.mean(g, 0), rtol=1e-5, atol=1e-6)


def scaled_losses_are_skipped_together():
    """Rank 1's batch overflows once: all ranks skip that step, halve their scale, and go on."""
    for wrap in (
        lambda o: keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(o), 4.0),
        lambda o: hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(o, 4.0)),
    ):
        model, (_, (x, y)) = network(), samples()
        model.compile(wrap(keras.optimizers.SGD(0.1)), "mse", auto_scale_loss=False)
        model.train_on_batch(x[:BATCH], y[:BATCH])
        before = equal_everywhere(model, model.optimizer.variables)
        wild = np.where(hvd.rank() == 1, np.inf, y[:BATCH])
        model.train_on_batch(x[:BATCH], wild)
        after = equal_everywhere(model, model.optimizer.variables)
        assert float(model.optimizer.dynamic_scale) == 2.0
        n = model.count_params()
        assert np.isfinite(before).all() and (after[:n] == before[:n]).all()
        model.train_on_batch(x[:BATCH], y[:BATCH])
        assert (equal_everywhere(model)[:n] != before[:n]).any()
    whole = serial(keras.optimizers.SGD(0.1), epochs=1)
    same_as(distributed(wrap(keras.optimizers.SGD(0.1)), epochs=1), whole)
    # Ranks that have joined contribute zeros, which do not overflow.
    weight = keras.Variable(np.zeros(3, "f"))
    optimizer = wrap(keras.optimizers.SGD(1.0))
    if hvd.rank() > 0:
        for value in (8.0, np.inf):
            optimizer.apply([tf.fill(3, np.float32(value))], [weight])
        np.testing.assert_allclose(weight, np.full(3, -2.0 * (hvd.size() - 1) / hvd.size()))
        assert float(optimizer.dynamic_scale) == 2.0
    hvd.join()
    # Keras wraps the optimizer like this by itself.
    keras.config.set_dtype_policy("mixed_float16")
    try:
        mixed = distributed(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), epochs=1)
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(mixed.optimizer, keras.optimizers.LossScaleOptimizer)
    same_as(mixed, whole, 2e-2)


def an_optimizer_with_state():
    """The optimizer's state is copied, and the given optimizer does not change."""
    plain = keras.optimizers.Adam(0.01)
    model, _ = network(), fit(network(), plain, samples()[0], 8)
    copy = hvd.DistributedOptimizer(plain)
    assert len(copy.variables) == len(plain.variables)
    for ours, theirs in zip(copy.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not hasattr(plain, "horovod")
    # If accumulation begins later, it starts at zero, and the count of updates continues.
    later = hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
    assert int(later.iterations) == int(plain.iterations) > 1
    assert int(later._iterations) == 2 * int(plain.iterations)
    # An optimizer that has begun to accumulate continues: (2 + 4) / 2 on every rank.
    weight = keras.Variable(np.zeros(3, "f"))
    plain = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    plain.apply([tf.fill(3, 2.0)], [weight])
    copy = hvd.DistributedOptimizer(plain)
    copy.apply([tf.fill(3, 4.0)], [weight])
    np.testing.assert_array_equal(weight, np.full(3, -3.0))
    variables = [keras.Variable(np.full(3, 1.0, "f")), keras.Variable(np.zeros(2, "f"))]
    for apply in ("apply", "apply_gradients"):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        optimizer.register_local_var(variables[1])
        before = [v.numpy() for v in variables]
        gradients = [tf.fill(3, hvd.rank() + 1.0), tf.fill(2, hvd.rank() + 1.0)]
        if apply == "apply":
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        mean, own = (hvd.size() + 1) / 2, (hvd.rank() + 1) / hvd.size()
        np.testing.assert_allclose(variables[0], before[0] - mean)
        np.testing.assert_allclose(variables[1], before[1] - own, rtol=1e-6)
    local = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=model.layers[1], scale_local_gradients=False
    )
    ours = model.trainable_variables
    before = [v.numpy() for v in ours]
    local.apply([tf.fill(v.shape, hvd.rank() + 1.0) for v in ours], ours)
    for v, old, step in zip(ours, before, [hvd.rank() + 1] * 2 + [mean] * 2, strict=True):
        np.testing.assert_allclose(v, old - step, rtol=1e-5)


def tapes():
    rank, size = hvd.rank(), hvd.size()
    a, b, table = tf.Variable([1.0, 2.0]), tf.Variable(3.0), tf.Variable(tf.zeros((4, 2)))
    mean = (size + 1) / 2

    def gradients(sources=(a, b, table), wrap=hvd_tf.DistributedGradientTape, **options):
        with tf.GradientTape() as tape:
            rows = tf.reduce_sum(tf.gather(table, [rank, rank]))
            loss = (rank + 1.0) * (tf.reduce_sum(a * a) + b + rows)
        return wrap(tape, **options).gradient(loss, list(sources))

    table_mean = np.zeros((4, 2))
    for r in range(size):
        table_mean[r] = 2 * (r + 1) / size
    for options in (
        {}, {"sparse_as_dense": True}, {"groups": 2}, {"groups": [[b, a]]},
        {"gradient_predivide_factor": 2.0}, {"compression": hvd.Compression.fp16},
    ):  # fmt: skip
        for way in (gradients, tf.function(gradients)):
            got = way(**options)
            np.testing.assert_allclose(got[0], mean * np.array([2.0, 4.0]), rtol=1e-6)
            np.testing.assert_allclose(got[1], mean, rtol=1e-6)
            np.testing.assert_allclose(tf.convert_to_tensor(got[2]), table_mean, rtol=1e-3)
    np.testing.assert_allclose(
        gradients(op=hvd.Sum, sources=[a])[0], size * mean * 2 * a, rtol=1e-6
    )
    with hvd_tf.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = (rank + 1.0) * b * b
    tape.register_local_source(b)
    np.testing.assert_allclose(tape.gradient(loss, b), 6 * (rank + 1) / size, rtol=1e-6)
    assert tape.gradient(loss, a) is None
    dense = keras.layers.Dense(1)
    dense.build((None, 2))
    with tf.GradientTape() as tape:
        loss = (rank + 1.0) * (tf.reduce_sum(dense(tf.ones((1, 2)))) + b)
    got = hvd_tf.PartialDistributedGradientTape(
        tape, local_layers=[dense], scale_local_gradients=False
    ).gradient(loss, {"b": b, "bias": dense.bias})
    assert float(got["b"]) == mean and float(got["bias"][0]) == rank + 1
    with pytest.raises(TypeError, match="local_layers must be Keras layers"):
        hvd_tf.PartialDistributedGradientTape(tape, local_layers=[b])


def normalised(layer, seed=0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6,))
    x = layer(name="normal")(keras.layers.Dense(8, "tanh")(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def batches_are_normalised_together():
    """Results and statistics are those of plain batch normalisation of the whole batch."""
    sgd, (whole, part) = keras.optimizers.SGD, samples()

    def train():
        model = normalised(keras.layers.BatchNormalization)
        fit(model, sgd(0.1), whole, BATCH * hvd.size(), 1)
        return model

    model = normalised(hvd.SyncBatchNormalization, hvd.rank())
    start = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    fit(model, hvd.DistributedOptimizer(sgd(0.1)), part, BATCH, 1, start)
    same_as(model, on_rank_0(train))
    again = type(model).from_config(model.get_config())
    assert type(again.get_layer("normal")) is hvd.SyncBatchNormalization


def two_networks_of_two_teams():
    """Rank 0 trains alone and the others train together, independent of each other."""
    others = hvd.add_process_set(range(1, hvd.size()))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=others)
    model, (_, part) = network(), samples()
    fit(model, optimizer, part, BATCH, 1)
    weights = np.concatenate([np.ravel(v) for v in model.weights])
    everyone = hvd.allgather(weights[np.newaxis]).numpy()
    assert (everyone[1:] == everyone[1]).all() and (everyone[0] != everyone[1]).any()
    alone = network()
    fit(alone, keras.optimizers.SGD(0.1), part, BATCH, 1)
    if hvd.rank() == 0:
        np.testing.assert_allclose(weights, np.concatenate([np.ravel(v) for v in alone.weights]))


def a_rank_that_fails_in_a_graph():
    """Ranks in the graph's collective learn which rank failed and why. It is the last check.

    An uncaught exception is reported to all teams. This one is caught, so the check reports it.
    """
    from numba_kernels.team.failure import abort_all

    def fail(batch, logs):
        if batch == 2 and hvd.rank() == 1:
            raise KeyError("no such sample")

    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=fail)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    try:
        fit(network(), optimizer, samples()[1], BATCH, 1, [callback])
    except KeyError as error:
        abort_all(error)
    except tf.errors.OpError as error:
        assert "PeerError: rank 1 failed: KeyError: 'no such sample'" in str(error)
    else:
        raise AssertionError("nobody failed")


CHECKS = [
    fit_is_serial_training, options_of_the_optimizer, accumulated_batches,
    accumulated_batches_of_a_loaded_model, sparse_gradients_of_embeddings,
    ragged_shards_average_ranks_alike,
    scaled_losses_are_skipped_together, an_optimizer_with_state, tapes,
    batches_are_normalised_together, two_networks_of_two_teams, a_rank_that_fails_in_a_graph,
]  # fmt: skip
