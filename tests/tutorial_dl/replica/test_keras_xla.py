"""Steps compiled by XLA: the numbers of the graph, and what XLA can't compile."""

import os
import sys

import keras_networks as networks
import numpy as np
import pytest
from keras_networks import IMAGES, LABELS, compiled, keras, layers, tf

from tutorial_dl import replica
from tutorial_dl.runtime.compilation import check_way

pytestmark = pytest.mark.xdist_group("keras")

SEQUENCES = np.random.default_rng(5).standard_normal((13, 6, 3)).astype(np.float32)
SEQUENCES[:, 4:] = 0  # what a mask leaves out
FLAT = IMAGES.reshape(13, -1)
WAYS = ("graph", "xla")


def dropping():
    """XLA draws other masks than a graph."""
    x = inputs = keras.Input((36,))
    x = layers.GaussianNoise(0.3)(layers.Dropout(0.4)(layers.Dense(5, "relu")(x)))
    return compiled(inputs, layers.Dense(3, "softmax")(x)), FLAT, LABELS


def recurrent():
    x = inputs = keras.Input((6, 3))
    x = layers.LSTM(4)(layers.Masking()(x))
    return compiled(inputs, layers.Dense(3, "softmax")(x)), SEQUENCES, LABELS


def normalised():
    return networks.normalised(), IMAGES, LABELS


def two_inputs():
    return networks.two_inputs(), *networks.MODELS["two_inputs"][1]


def made(build):
    keras.utils.set_random_seed(3)
    model, x, y = build()
    return replica.of(model), (x, y)


@pytest.mark.thorough(but="two_inputs")
@pytest.mark.parametrize("build", [normalised, recurrent, two_inputs])
def test_the_numbers_of_a_graph(build):
    """Losses, gradients, moving statistics and metrics, over several steps and a shorter batch.

    Nor is there a file in /tmp, as AutoGraph writes for each function that it translates.
    """
    found, before = [], set(sys.modules)
    for way in ("graph", "xla"):
        r, batch = made(build)
        r.trained = {}
        r.compilation.choose("gradient", way, 13)
        r.compilation.choose("evaluation", way, 13)
        assert r.compilation.chosen == {"gradient": way, "evaluation": way}
        losses, gradients = [], []
        for n in (13, 13, 7):
            losses.append(r.compute_gradient(networks.part(batch, slice(n)))[0])
            gradients.append(r.gradient.copy())
            r.parameters -= 0.1 * r.gradient
        found.append([losses, *gradients, r.state, *r.evaluate([batch]).values()])
        metrics = r.metrics_of(r.trained)
        found[-1] += [metrics[name] for name in metrics if name != "loss"]
        graphs = [str(graph.graph.as_graph_def()) for graph, *_ in r.graphs.functions.values()]
        by_xla = sum("_XlaMustCompile" in graph for graph in graphs)
        assert by_xla == (2 if way == "xla" else 0)  # not for 7 samples
    for expected, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, expected, rtol=1e-4, atol=1e-5)
    assert not [name for name in set(sys.modules) - before if "autograph_generated" in name]


@pytest.mark.thorough
def test_measuring_leaves_no_trace():
    (first, batch), (second, _) = made(dropping), made(dropping)
    times = [
        second.compilation.seconds(w, h, batch) for w in ("gradient", "evaluation") for h in WAYS
    ]
    assert min(times) > 0
    assert second.compilation.chosen == {"gradient": "graph", "evaluation": "graph"}
    assert second.compute_gradient(batch) == first.compute_gradient(batch)
    np.testing.assert_array_equal(second.gradient, first.gradient)
    np.testing.assert_array_equal(second.random, first.random)


def test_what_xla_can_not_compile_stays_a_graph(capfd):
    class CallsPython(layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), x.shape)

    class Differs(layers.Layer):
        """Draws even in inference mode, which XLA does otherwise."""

        def build(self, shape):
            self.seeds = keras.random.SeedGenerator(1)

        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x), seed=self.seeds)

    for kind in (CallsPython, Differs):
        inputs = keras.Input((36,))
        r = replica.of(compiled(inputs, layers.Dense(3, "softmax")(kind()(inputs))))
        batch = FLAT, LABELS
        assert r.compilation.may_choose and r.compilation.seconds("gradient", "graph", batch) > 0
        assert r.compilation.seconds("gradient", "xla", batch) is None
        assert r.compute_gradient(batch)[1] == 13
    assert not capfd.readouterr().err


def test_the_first_step_of_a_graph_is_without_chatter(capfd):
    """oneDNN says of some processors what it can't compute; other words stay."""
    chatter = b"E0000 00:00:1.5 7 util.cc:131] oneDNN supports DT_BOOL only on platforms with\n"

    class Talks(layers.Layer):
        def call(self, x):
            def talk(a):
                os.write(2, chatter + b"a real word\n")
                return a

            return tf.ensure_shape(tf.numpy_function(talk, [x], tf.float32), x.shape)

    inputs = keras.Input((36,))
    r = replica.of(compiled(inputs, layers.Dense(3, "softmax")(Talks()(inputs))))
    capfd.readouterr()
    r.compute_gradient((FLAT, LABELS))
    assert set(capfd.readouterr().err.splitlines()) == {"a real word"}


def test_models_whose_errors_xla_would_hide_are_not_compiled_by_choice():
    inputs = keras.Input((5,), dtype="int64")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(inputs))
    model = compiled(inputs, layers.Dense(3, "softmax")(x))
    r = replica.of(model)
    assert not r.compilation.may_choose
    check_way("xla", r)  # but where a user asks for it
    model.compile(loss="mse", run_eagerly=True)
    eager = replica.of(model)
    assert (
        eager.compilation.chosen == {"gradient": "eager", "evaluation": "eager"}
        and not eager.compilation.may_choose
    )
    with pytest.raises(ValueError, match=r"does not fit this model: .*run_eagerly"):
        check_way("xla", eager)


def test_measuring_would_change_a_model_with_spectral_normalisation():
    inputs = keras.Input((36,))
    normalised = layers.SpectralNormalization(layers.Dense(3, "softmax"))(inputs)
    assert not replica.of(compiled(inputs, normalised)).compilation.may_choose


def test_numpy_models_have_no_choice():
    from tutorial_dl.replica import SoftmaxReplica

    with pytest.raises(ValueError, match="compile='xla' does not fit this model: it is no Keras"):
        check_way("xla", SoftmaxReplica(3, 2))
    with pytest.raises(ValueError, match="unknown compile 'jit'; choose one of auto, graph, xla"):
        check_way("jit", SoftmaxReplica(3, 2))
    check_way("auto", SoftmaxReplica(3, 2))
