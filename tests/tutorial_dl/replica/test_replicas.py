"""Numpy replicas against finite differences, closed forms, and batches in pieces."""

import subprocess
import sys

import numpy as np
import pytest

from numba_kernels.shared.window import aligned
from tutorial_dl import data, replica
from tutorial_dl.replica import CurveReplica, DenseReplica, SoftmaxReplica
from tutorial_dl.replica.contract import CONTRACT
from tutorial_dl.replica.layered import LayeredReplica, cnn_layers, mlp_layers
from tutorial_dl.replica.proxy import Accumulating
from tutorial_dl.replica.transformer import TransformerReplica

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((13, 5))
LABELS = RANDOM.integers(0, 4, 13)
VALUES = RANDOM.standard_normal((13, 4))
CURVE_X, CURVE_Y = RANDOM.uniform(-1, 1, (2, 13))
IMAGES, TOKENS, NEXT = RANDOM.standard_normal((13, 4, 3, 2)), *RANDOM.integers(0, 7, (2, 13, 5))


def small_transformer(dtype):
    model = TransformerReplica(7, 6, 4, heads=2, blocks=1, seed=1, dtype=dtype)
    for embedding in model.weights[:2]:  # +-1: norms of small numbers bend too much for float32
        embedding *= 20
    return model


# name -> (builder from a dtype, batch)
MODELS = {
    "curve": (lambda dtype: CurveReplica(4, dtype=dtype), (CURVE_X, CURVE_Y)),
    "curve_basis": (
        lambda dtype: CurveReplica(
            basis=lambda x: np.stack([np.sin(x), np.cos(3 * x)], axis=1), dtype=dtype
        ),
        (CURVE_X, CURVE_Y),
    ),
    "softmax": (lambda dtype: SoftmaxReplica(5, 4, seed=1, dtype=dtype), (X, LABELS)),
    "dense_relu": (lambda dtype: DenseReplica((5, 7, 6, 4), seed=1, dtype=dtype), (X, LABELS)),
    "dense_tanh": (
        lambda dtype: DenseReplica((5, 7, 6, 4), "tanh", seed=1, dtype=dtype),
        (X, LABELS),
    ),
    "dense_mse": (
        lambda dtype: DenseReplica((5, 7, 6, 4), "tanh", "mse", seed=1, dtype=dtype),
        (X, VALUES),
    ),
    "dense_one_output": (
        lambda dtype: DenseReplica((1, 9, 1), "tanh", "mse", seed=1, dtype=dtype),
        (CURVE_X, CURVE_Y),
    ),
    "layers_mlp": (
        lambda dtype: LayeredReplica(mlp_layers((5, 6, 5, 4), "tanh"), "mse", 1, dtype),
        (X, VALUES),
    ),
    "layers_cnn": (
        lambda dtype: LayeredReplica(cnn_layers((4, 3, 2), (3, 2), 4), seed=1, dtype=dtype),
        (IMAGES, LABELS),
    ),
    "transformer": (lambda dtype: small_transformer(dtype), (TOKENS, NEXT)),
}


def build(name, dtype="float64"):
    make, batch = MODELS[name]
    model = make(dtype)
    # Biases and the curve's coefficients start at 0, where mistakes hide.
    model.parameters += np.random.default_rng(3).uniform(-0.3, 0.3, len(model.parameters))
    return model, batch


def part(batch, samples):
    return tuple(array[samples] for array in batch)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_they_keep_the_contract(name, dtype):
    for wrap in (lambda r: r, lambda r: Accumulating(r, 3)):
        model, batch = build(name, dtype)
        before = model.parameters.copy()
        checked = replica.check(wrap(model), [batch, part(batch, slice(2, 9))])
        assert checked == list(CONTRACT) and len(checked) == 15
        np.testing.assert_array_equal(model.parameters, before)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_is_the_slope_of_the_loss(name):
    model, batch = build(name)
    loss, samples = model.compute_gradient(batch)
    analytic, step = model.gradient.copy(), 1e-6
    measured = np.empty_like(analytic)
    for i in range(len(analytic)):
        at = model.parameters[i]
        model.parameters[i] = at + step
        above = model.evaluate([batch])["loss"]
        model.parameters[i] = at - step
        below = model.evaluate([batch])["loss"]
        model.parameters[i] = at
        measured[i] = (above - below) / (2 * step)
    # Errors of central differences are step^2 and rounding / step, both about 1e-10.
    np.testing.assert_allclose(analytic, measured, rtol=1e-6, atol=2e-9)
    assert np.abs(analytic).max() > 1e-2
    assert samples == 13
    assert loss == pytest.approx(model.evaluate([batch])["loss"], rel=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_float32_stays_float32_and_float64_is_float64_all_through(name):
    single, batch = build(name, "float32")
    double, _ = build(name, "float64")
    double.parameters[:] = single.parameters
    for model in (single, double):
        model.compute_gradient(batch)
    assert single.gradient.dtype == np.float32 and double.gradient.dtype == np.float64
    difference = np.abs(single.gradient - double.gradient).max()
    # They agree only to float32's precision. If float64 went through float32 somewhere, they
    # would be equal.
    assert 0 < difference < 2e-6 * max(1, np.abs(double.gradient).max())


def test_place_refuses_memory_that_does_not_fit():
    model = CurveReplica(degree=2)
    fits = aligned(3)
    read_only = aligned(3)
    read_only.flags.writeable = False
    for wrong, complaint in [
        (aligned(4), r"float32 \(4,\), expected float32 \(3,\)"),
        (aligned(3, "float64"), "float64"),
        (aligned(4)[1:], "multiple of 64"),
        (aligned(6)[::2], "contiguous"),
        (read_only, "writeable"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            model.place(fits, wrong)
        with pytest.raises(ValueError, match=complaint):
            model.place(wrong, fits)


def test_curve_descends_to_the_least_squares_fit():
    """At zero gradient, the curve is numpy's polynomial fit of the same data."""
    model = CurveReplica(degree=3, dtype="float64")
    x, y = data.curve(n=50, noise=0.2, seed=2).train.take(slice(None))
    model.parameters[:] = np.polynomial.Polynomial.fit(x, y, 3).convert().coef
    loss, _ = model.compute_gradient((x, y))
    np.testing.assert_allclose(model.gradient, 0, atol=1e-13)
    assert loss == pytest.approx(np.mean((np.polyval(np.polyfit(x, y, 3), x) - y) ** 2))


def test_softmax_with_zero_weights_guesses():
    """With p = 1/k for every class, the loss is ln k, the bias gradient 1/k - class frequency."""
    model = SoftmaxReplica(5, 4, dtype="float64")
    model.parameters[:] = 0
    loss, _ = model.compute_gradient((X, LABELS))
    assert loss == pytest.approx(np.log(4))
    frequency = np.bincount(LABELS, minlength=4) / 13
    np.testing.assert_allclose(model.weights_gradient[1], 0.25 - frequency, atol=1e-15)


def test_cross_entropy_of_huge_logits_is_finite():
    """With logits (1000, 0) the loss is 0 or 1000; exp(1000) must not be computed."""
    model = SoftmaxReplica(1, 2, dtype="float32")
    model.weights[0][:] = [[1000, 0]]
    model.weights[1][:] = 0
    assert model.evaluate([(np.ones((1, 1)), np.array([0]))])["loss"] == 0
    assert model.evaluate([(np.ones((1, 1)), np.array([1]))])["loss"] == 1000
    model.compute_gradient((np.ones((1, 1)), np.array([1])))
    np.testing.assert_array_equal(model.gradient, [1, -1, 1, -1])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_nan_is_not_hidden(activation, loss):
    model = DenseReplica((5, 7, 4), activation, loss)
    model.parameters[0] = np.nan
    value, _ = model.compute_gradient((X, LABELS if loss == "cross_entropy" else VALUES))
    assert np.isnan(value)


def test_accuracy_and_predictions():
    model = DenseReplica((5, 7, 4), seed=2, dtype="float64")
    probabilities = model.predict(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    metrics = model.evaluate([(X, LABELS)])
    assert metrics["accuracy"] == np.mean(probabilities.argmax(axis=1) == LABELS)
    assert metrics["loss"] == pytest.approx(-np.log(probabilities[range(13), LABELS]).mean())


def test_seed_decides_the_first_weights():
    first, again, other = (DenseReplica(seed=s).parameters for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    kernel = DenseReplica((300, 200, 10), seed=0).weights[0]
    limit = np.sqrt(6 / 500)  # Glorot's uniform distribution has variance limit^2 / 3
    assert np.abs(kernel).max() <= limit
    assert kernel.std() == pytest.approx(limit / np.sqrt(3), rel=0.01)


def test_segments_name_the_layers():
    model = DenseReplica((5, 7, 4))
    assert [(s.name, s.offset, s.shape) for s in model.segments] == [
        ("layer_1/kernel", 0, (5, 7)),
        ("layer_1/bias", 35, (7,)),
        ("layer_2/kernel", 42, (7, 4)),
        ("layer_2/bias", 70, (4,)),
    ]
    assert len(model.parameters) == 74 and len(model.state) == 0


def test_images_and_columns_of_labels_are_taken_as_they_come():
    dataset = data.digits()
    model = DenseReplica((64, 8, 10))
    x, y = dataset.train.take(slice(0, 20))
    loss, _ = model.compute_gradient((x, y))
    flat, _ = model.compute_gradient((x.reshape(20, 64), y.reshape(20, 1).astype(np.int32)))
    assert loss == flat


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: DenseReplica((5,)), r"sizes \(5,\)"),
        (lambda: DenseReplica((5, 0, 2)), r"sizes \(5, 0, 2\)"),
        (lambda: DenseReplica(activation="gelu"), "activation 'gelu': expected relu or tanh"),
        (lambda: DenseReplica(loss="hinge"), "loss 'hinge': expected cross_entropy or mse"),
        (lambda: DenseReplica(dtype="int32"), "dtype int32: expected float32 or float64"),
        (lambda: CurveReplica(degree=-1), "degree must be at least 0, got -1"),
        (lambda: CurveReplica(degree=2, parameters=np.ones(2)), r"\(2,\): expected \(3,\)"),
        (lambda: SoftmaxReplica(5, 4).compute_gradient((X, LABELS + 1)), "label 4 of sample"),
        (lambda: SoftmaxReplica(5, 4).compute_gradient((X, LABELS - 1)), "label -1 of sample"),
        (lambda: SoftmaxReplica(5, 4).compute_gradient((X, VALUES)), r"\(13, 4\).*one integer"),
        (lambda: SoftmaxReplica(6, 4).compute_gradient((X, LABELS)), "5 values: .* expects 6"),
        (
            lambda: DenseReplica((5, 4), loss="mse").compute_gradient((X, VALUES[:, :3])),
            r"targets of shape \(13, 3\): expected \(13, 4\)",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(make, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        make()
    assert "\n" not in str(error.value)


def test_importing_loads_neither_tensorflow_nor_the_other_slow_ones():
    """Import in a new process, since this one may have imported everything."""
    code = (
        "import sys, tutorial_dl.data, tutorial_dl.replica, tutorial_dl.models\n"
        "slow = {'tensorflow', 'keras', 'matplotlib', 'sklearn', 'mpi4py.MPI', 'numba'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)\n"
        "tutorial_dl.replica.DenseReplica(); tutorial_dl.data.digits()\n"
        "assert not {'tensorflow', 'keras', 'matplotlib', 'mpi4py.MPI'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_batch_that_failed_half_way_is_made_again_with_the_same_draws():
    class Fails(DenseReplica):
        random = np.zeros(2, np.int64)
        calls = 0

        def compute_gradient(self, batch):
            self.calls += 1
            if self.calls == 3:
                raise OSError
            self.random = self.random + 1
            return super().compute_gradient(batch)

    replica = Fails((4, 3), loss="mse", seed=0)
    pieces = Accumulating(replica, 4)
    batch = np.ones((8, 4)), np.ones((8, 3))
    with pytest.raises(OSError):
        pieces.compute_gradient(batch)
    assert not replica.random.any()
    pieces.compute_gradient(batch)
    assert (replica.random == 4).all()
