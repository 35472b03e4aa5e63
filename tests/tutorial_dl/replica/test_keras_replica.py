"""KerasReplica against Keras itself, numpy's dense network and finite differences."""

import numpy as np
import pytest
from keras_networks import (
    IMAGES,
    LABELS,
    MODELS,
    build,
    compiled,
    keras,
    layers,
    part,
    plain_gradient,
    tf,
)

from tutorial_dl import replica
from tutorial_dl.replica import DenseReplica

pytestmark = pytest.mark.xdist_group("keras")


@pytest.mark.thorough(but=["normalised", "two_inputs"])
@pytest.mark.parametrize("name", MODELS)
def test_it_keeps_the_contract(name):
    model, batch = build(name)
    checked = replica.check(
        replica.of(model),
        [batch, part(batch, slice(2, 9))],
        skip=["additive"] if name == "normalised" else [],
    )
    assert {"apart", "scale", "state", "slope"} <= set(checked)


@pytest.mark.thorough(but="normalised")
@pytest.mark.parametrize("name", MODELS)
def test_changing_parameters_changes_the_network(name):
    """Our update of the parameters gives the weights and loss of Keras's own SGD step."""
    theirs, batch = build(name)
    theirs.optimizer = keras.optimizers.SGD(0.1)
    theirs.train_on_batch(*batch)
    model, _ = build(name)
    r = replica.KerasReplica(model)
    assert r.step.by_tensors == (name != "regularised")  # which has a layer of the user's
    before = r.evaluate([batch])["loss"]
    expected_loss, _ = plain_gradient(*build(name))
    assert r.compute_gradient(batch) == (pytest.approx(expected_loss, rel=1e-6), 13)
    r.parameters -= np.float32(0.1) * r.gradient
    for ours, own in zip(model.trainable_weights, theirs.trainable_weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), own.numpy(), rtol=1e-5, atol=1e-6)
    after = r.evaluate([batch])["loss"]
    assert after != before
    assert after == pytest.approx(theirs.evaluate(*batch, verbose=0, return_dict=True)["loss"],
                                  rel=1e-5)  # fmt: skip
    # The next gradient, through the function traced before the update, uses the new weights.
    expected_loss, _ = plain_gradient(theirs, batch)
    assert r.compute_gradient(batch)[0] == pytest.approx(expected_loss, rel=1e-5)


def with_a_tf_function():
    """Keras's own class and the user's function, which keeps what it was first traced with."""
    dense = layers.Dense(4, "tanh")
    inputs = keras.Input((36,))
    dense(inputs)
    return inputs, layers.Lambda(tf.function(lambda x: dense(x)), output_shape=(4,))(inputs)


def without_a_gradient():
    inputs = keras.Input((36,))
    return inputs, layers.Lambda(keras.ops.stop_gradient)(layers.Dense(4, "tanh")(inputs))


def with_a_norm():
    inputs = keras.Input((36,))
    return inputs, layers.SpectralNormalization(layers.Dense(4, "tanh"))(inputs)


@pytest.mark.parametrize("begin", [with_a_tf_function, without_a_gradient, with_a_norm])
def test_models_that_need_variables_have_keras_s_gradient(begin):
    def make():
        keras.utils.set_random_seed(3)
        inputs, x = begin()
        return compiled(inputs, layers.Dense(3, "softmax")(x))

    batch = IMAGES.reshape(13, 36), LABELS
    loss, gradients = plain_gradient(make(), batch)
    r = replica.of(make())
    for samples in (13, 5, 13):  # evaluation and other sizes have graphs of their own
        r.evaluate([part(batch, slice(0, samples))])
        found = r.compute_gradient(part(batch, slice(0, samples)))
        if begin is with_a_norm:
            break  # each step changes its weights
    assert not r.step.by_tensors and found == (pytest.approx(loss, rel=1e-6), 13)
    for segment, gradient in zip(r.segments, gradients, strict=True):
        np.testing.assert_allclose(segment.view(r.gradient), gradient, rtol=1e-5, atol=1e-6)


def test_sizes_of_batches_do_not_retrace():
    model, batch = build("convolutional")
    traced = []
    call = model.call
    model.call = lambda *args, **kwargs: (traced.append(1), call(*args, **kwargs))[1]
    r = replica.KerasReplica(model)
    r.compute_gradient(batch)
    r.evaluate([batch])
    once = len(traced)
    for size in (1, 4, 12):
        r.compute_gradient(part(batch, slice(0, size)))
        r.evaluate([part(batch, slice(0, size))])
    assert once and len(traced) == once


@pytest.mark.thorough
def test_recurrent_networks_have_graphs_of_a_few_sizes():
    """The first sizes have a graph each, all others share one; gradients are the same."""
    from tutorial_dl.replica.keras.graphs import SIZES

    model = keras.Sequential(
        [keras.Input((5, 3)), layers.Masking(), layers.LSTM(4), layers.Dense(2)]
    )
    model.compile(loss="mse")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(9, 5, 3)).astype("float32"), random.normal(size=(9, 2))
    r, found = replica.KerasReplica(model), []
    for samples in (9, 1, 2, 3, 4, 5, 6, 9):
        loss, _ = r.compute_gradient((x[:samples], y[:samples]))
        found.append((loss, r.gradient.copy()))
    gradients = [key for key in r.graphs.functions if key[1][0] == "gradient"]
    assert len(gradients) == SIZES + 1 and sum(samples is None for samples, _ in gradients) == 1
    np.testing.assert_array_equal(found[0][1], found[-1][1])
    single = [  # sample by sample, through the graph for one sample
        (r.compute_gradient((x[i : i + 1], y[i : i + 1]))[0], r.gradient.copy()) for i in range(9)
    ]
    for samples, (loss, gradient) in zip((9, 1, 2, 3, 4, 5, 6, 9), found, strict=True):
        assert loss == pytest.approx(np.mean([one[0] for one in single[:samples]]), rel=1e-5)
        mean = np.mean([one[1] for one in single[:samples]], axis=0)
        np.testing.assert_allclose(gradient, mean, atol=1e-6)


@pytest.fixture
def precision(request):
    """Keras's default precision, "float32" or "float64"."""
    keras.config.set_floatx(request.param)  # the precision of losses
    keras.config.set_dtype_policy(request.param)  # the precision of layers
    yield request.param
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("ours", ["cross_entropy", "mse"])
@pytest.mark.parametrize("precision", ["float32", "float64"], indirect=True)
def test_the_dense_network_in_numpy_is_keras_s(activation, ours, precision):
    """Two implementations with the same weights have the same loss, gradients and accuracy."""
    own = DenseReplica((36, 8, 5, 3), activation, ours, seed=3, dtype=precision)
    own.parameters += np.random.default_rng(0).uniform(-0.2, 0.2, len(own.parameters))
    x = inputs = keras.Input((6, 6, 1))
    x = layers.Flatten()(x)
    for size in (8, 5):
        x = layers.Dense(size, activation)(x)
    x = layers.Dense(3)(x)
    if ours == "mse":
        options = {"loss": "mse", "metrics": []}
    else:
        options = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    r = replica.KerasReplica(compiled(inputs, x, **options))
    for to, value in zip(r.segments, own.weights, strict=True):
        to.view(r.parameters)[...] = value
    y = LABELS if ours == "cross_entropy" else np.eye(3, dtype=precision)[LABELS]
    batch = IMAGES.astype(precision), y
    error = 1e-12 if precision == "float64" else 2e-6
    loss, expected = r.compute_gradient(batch)[0], own.compute_gradient(batch)[0]
    assert loss == pytest.approx(expected, rel=error)
    for to, value in zip(r.segments, own.weights_gradient, strict=True):
        np.testing.assert_allclose(to.view(r.gradient), value, rtol=0, atol=error)
    metrics, expected = own.evaluate([batch]), r.evaluate([batch])
    assert metrics.keys() == expected.keys()
    for key in metrics:
        assert metrics[key] == pytest.approx(expected[key], rel=1e-6)


# Metrics


@pytest.mark.thorough(but="two_outputs")
@pytest.mark.parametrize("name", MODELS)
def test_evaluate_over_ragged_batches_is_keras_s_on_the_whole(name):
    model, batch = build(name)
    expected = model.evaluate(*batch, batch_size=13, verbose=0, return_dict=True)
    r = replica.KerasReplica(model)
    pieces = [part(batch, s) for s in (slice(0, 6), slice(6, 6), slice(6, 7), slice(7, 13))]
    metrics = r.evaluate(iter(pieces))
    assert metrics.pop("samples") == 13
    assert metrics.keys() == expected.keys()
    for key, value in expected.items():
        assert metrics[key] == pytest.approx(value, rel=1e-5)
    again = r.evaluate(pieces[-1:])  # it starts again, without the 13 samples before
    assert again["samples"] == 6 and again["loss"] != metrics["loss"]


def test_evaluate_of_nothing_has_the_same_metrics():
    """A rank without samples must still be able to take part in an average over ranks."""
    model, batch = build("convolutional")
    r = replica.KerasReplica(model)
    assert r.evaluate([]) == {"loss": 0, "samples": 0}
    assert r.evaluate([part(batch, slice(0, 0))]) == {"loss": 0, "accuracy": 0, "samples": 0}
    r.evaluate([batch])
    assert r.evaluate([]) == {"loss": 0, "accuracy": 0, "samples": 0}
    model, batch = build("convolutional")
    r = replica.KerasReplica(model)
    r.compute_gradient(batch)
    assert r.evaluate([]) == {"loss": 0, "accuracy": 0, "samples": 0}


# State


def test_state_is_the_moving_statistics():
    theirs, batch = build("normalised")
    theirs.optimizer = keras.optimizers.SGD(0.1)
    theirs.train_on_batch(*batch)
    model, _ = build("normalised")
    r = replica.KerasReplica(model)
    np.testing.assert_array_equal(r.state, [0, 0, 0, 0, 1, 1, 1, 1])  # mean 0, variance 1
    r.compute_gradient(batch)
    expected = np.concatenate([v.numpy() for v in theirs.non_trainable_weights])
    np.testing.assert_allclose(r.state, expected, rtol=1e-5, atol=1e-7)
    moved = r.state
    r.compute_gradient(part(batch, slice(0, 0)))
    np.testing.assert_array_equal(r.state, moved)  # a batch without samples leaves them
    r.evaluate([batch])
    np.testing.assert_array_equal(r.state, moved)  # evaluation does not change them
    r.state = moved / 2
    np.testing.assert_array_equal(r.state, moved / 2)
    bn = next(v for v in model.non_trainable_weights if "moving_mean" in v.path)
    np.testing.assert_array_equal(bn.numpy(), moved[:4] / 2)
    with pytest.raises(ValueError, match="read-only"):
        r.state[:] = 0  # otherwise this would silently change a copy
    with pytest.raises(ValueError, match=r"state of shape \(7,\): expected \(8,\)"):
        r.state = np.zeros(7)


def test_an_error_in_a_graph_is_kept_without_its_frames():
    """They hold batches and models."""
    from numba_kernels import TeamError
    from numba_kernels.team import short_traceback
    from tutorial_dl.replica.keras.collectives import in_order

    for error, kept in (
        (TeamError("a peer failed"), ["a peer failed"]),
        (KeyError("of a user"), []),
    ):

        def fail(_, error=error):
            raise error

        call = tf.function(lambda x, f=fail: in_order(f, [x], [(tf.float32, (1,))], "test"))
        with pytest.raises(tf.errors.OpError):
            call(tf.ones(1))
        assert [str(one) for one in short_traceback.met] == kept
        assert not any(one.__traceback__ for one in short_traceback.met)
