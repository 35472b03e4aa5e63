"""Metrics of Keras models as sums over samples; expected values are Keras's own, on all samples."""

import numpy as np
import pytest
from keras_networks import VALUES, compiled, keras, layers, tf

from tutorial_dl import replica

pytestmark = pytest.mark.xdist_group("keras")

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((41, 2)).astype(np.float32)
YES = (X[:, 0] + 0.7 * RANDOM.standard_normal(41) > 0).astype(np.float32)[:, None]
KINDS = (np.abs(X[:, 0]) + np.abs(X[:, 1]) > 1).astype(int) + (X[:, 0] > 0.5)
PARTS = slice(0, 17), slice(17, 18), slice(18, 18), slice(18, 41)  # of four ranks

# For one output between 0 and 1, for probabilities of 3 classes one-hot, and for real numbers
BINARY = (
    "AUC", "Precision", "Recall", "F1", "PR", "BinaryAccuracy", "TruePositives",
    "SensitivityAtSpecificity", "BinaryIoU", "MeanSquaredError",
)  # fmt: skip
KINDS_OF = ("CategoricalAccuracy", "TopK", "OneHotMeanIoU", "AUC", "FBetaScore", "Precision")
REAL = ("R2Score", "RootMeanSquaredError", "CosineSimilarity", "MeanAbsoluteError", "LogCoshError")


def metric(name):
    own = {
        "F1": lambda: keras.metrics.F1Score(threshold=0.5, average="macro"),
        "PR": lambda: keras.metrics.AUC(curve="PR", num_thresholds=50, name="pr"),
        "SensitivityAtSpecificity": lambda: keras.metrics.SensitivityAtSpecificity(0.6),
        "BinaryIoU": lambda: keras.metrics.BinaryIoU(threshold=0.4),
        "TopK": lambda: keras.metrics.TopKCategoricalAccuracy(2),
        "OneHotMeanIoU": lambda: keras.metrics.OneHotMeanIoU(3),
        "FBetaScore": lambda: keras.metrics.FBetaScore(average="weighted"),
    }
    return own[name]() if name in own else getattr(keras.metrics, name)()


def network(outputs, activation, loss, metrics):
    inputs = keras.Input((2,))
    x = layers.Dense(5, "tanh")(inputs)
    return compiled(inputs, layers.Dense(outputs, activation)(x), loss=loss, metrics=metrics)


def measured(r, batches):
    """What ranks find together that have a batch each."""
    found = [r.measure([batch]) for batch in batches]
    found += [r.measure([])]  # a rank that has no batch
    return r.metrics_of({name: sum(one.get(name, 0) for one in found) for name in found[0]})


def trained(r, batches):
    """The same, of samples that ranks train on."""
    found = []
    for batch in batches:
        r.trained = {}
        r.compute_gradient(batch)
        found.append(r.trained)
    found = [sums for sums in found if sums]
    metrics = r.metrics_of({name: sum(one[name] for one in found) for name in found[0]})
    return {name: metrics[name] for name in metrics if name != "loss"}


@pytest.mark.thorough(but="names2-<lambda>-y2")
@pytest.mark.parametrize(
    ("names", "make", "y"),
    [
        (BINARY, lambda m: network(1, "sigmoid", "binary_crossentropy", m), YES),
        (
            KINDS_OF,
            lambda m: network(3, "softmax", "categorical_crossentropy", m),
            np.eye(3, dtype=np.float32)[KINDS],
        ),
        (REAL, lambda m: network(2, "linear", "mse", m), VALUES[np.arange(41) % 13]),
    ],
)
def test_metrics_over_ranks_are_those_of_one_process_on_all_samples(names, make, y):
    model = make([metric(name) for name in names])
    expected = model.evaluate(X, y, batch_size=41, verbose=0, return_dict=True)
    batches = [(X[part], y[part]) for part in PARTS]
    found = measured(replica.of(model), batches)
    assert found.keys() == expected.keys() and len(found) == len(names) + 1
    while_training = trained(replica.of(model), batches)
    assert while_training.keys() == expected.keys() - {"loss"}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
        if name != "loss":
            assert while_training[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
    # The mean of the ranks' values would be something else, for most of these metrics.
    alone = [replica.of(model).evaluate([(X[part], y[part])]) for part in (PARTS[0], PARTS[3])]
    mean = {n: (17 * alone[0][n] + 23 * alone[1][n]) / 40 for n in expected}
    assert sum(abs(mean[n] - expected[n]) > 1e-3 for n in expected) >= 3


def test_two_outputs_with_metrics_of_their_own():
    inputs = keras.Input((2,))
    outputs = [layers.Dense(1, "sigmoid", name="yes")(inputs), layers.Dense(2, name="at")(inputs)]
    loss, metrics = ["binary_crossentropy", "mse"], [[metric("AUC")], [metric("R2Score")]]
    model = compiled(inputs, outputs, loss=loss, metrics=metrics, loss_weights=[0.3, 2.0])
    y = YES, VALUES[np.arange(41) % 13]
    expected = model.evaluate(X, list(y), batch_size=41, verbose=0, return_dict=True)
    found = measured(replica.of(model), [(X[p], (y[0][p], y[1][p])) for p in PARTS])
    names = {name.rstrip("_0123456789") for name in expected}  # Keras numbers its metrics
    assert names == {"loss", "yes_loss", "at_loss", "yes_auc", "at_r2_score"}
    assert found == pytest.approx(expected, rel=1e-6)
    found = trained(replica.of(model), [(X[p], (y[0][p], y[1][p])) for p in PARTS])
    assert found == pytest.approx({n: expected[n] for n in expected if n != "loss"}, rel=1e-6)


def test_a_model_without_a_compiled_loss():
    x = inputs = keras.Input((2,))
    x = layers.Dense(2, activity_regularizer=keras.regularizers.L2(0.1))(x)
    model = compiled(inputs, x, loss=None, metrics=["mae"])
    y = VALUES[np.arange(41) % 13]
    expected = model.evaluate(X, y, batch_size=41, verbose=0, return_dict=True)
    assert expected["loss"] > 0
    r = replica.of(model)
    r.try_out((X, y), shared=True)
    assert measured(r, [(X[part], y[part]) for part in PARTS]) == pytest.approx(expected, rel=1e-5)


# A user's own


def batch_mean(y, p):
    return keras.ops.mean(keras.ops.abs(y - p))  # one number for the whole batch


def largest(y, p):
    return keras.ops.max(keras.ops.abs(y - p))


def summed(y, p):
    return keras.ops.sum(keras.ops.square(y - p))


def latest():
    class Latest(keras.metrics.Metric):
        """Holds the mean of its last batch, and no count."""

        def __init__(self):
            super().__init__(name="latest")
            self.value = self.add_weight(name="value", initializer="zeros")

        def update_state(self, y, p, sample_weight=None):
            self.value.assign(keras.ops.mean(p))

        def result(self):
            return self.value

    return network(1, "sigmoid", "mse", [Latest()])


def of_a_graph():
    class OfGraph(keras.metrics.MeanAbsoluteError):
        @tf.function
        def update_state(self, y, p, sample_weight=None):
            super().update_state(y, p, sample_weight)

    return network(1, "sigmoid", "mse", [OfGraph(name="own")])


def counting():
    class Counting(layers.Layer):
        def __init__(self):
            super().__init__()
            self.seen = keras.metrics.Mean(name="seen")

        def call(self, x):
            self.seen.update_state(keras.ops.mean(x))
            return x

    inputs = keras.Input((2,))
    return compiled(inputs, layers.Dense(1)(Counting()(inputs)), loss="mse", metrics=[])


@pytest.mark.parametrize(
    "make", [lambda: network(1, "sigmoid", "mse", [batch_mean]), latest, of_a_graph, counting]
)
def test_metrics_of_a_users_own(make):
    """Means over batches are weighted by their samples, as if they were one batch."""
    model = make()
    expected = model.evaluate(X, YES, batch_size=41, verbose=0, return_dict=True)
    r = replica.of(model)
    r.try_out((X, YES), shared=True)
    batches = [(X[part], YES[part]) for part in PARTS]
    assert len(expected) == 2 and measured(r, batches) == pytest.approx(expected, rel=1e-5)
    del expected["loss"]
    assert trained(r, batches) == pytest.approx(expected, rel=1e-5)


def test_what_needs_the_whole_batch_is_refused_where_pieces_of_it_are_computed_apart():
    for loss, metrics, said in (
        ("mse", ["mae", largest], "the numbers of metric 'largest' are not sums over samples"),
        (summed, [], "loss 'summed' is not a mean over samples"),
        (keras.losses.Dice(), [], "loss 'dice' is not a mean over samples"),
    ):
        r = replica.of(network(1, "sigmoid", loss, metrics))
        r.try_out((X, YES), shared=False)  # one rank computes each batch: as in Keras
        r.try_out((X, YES), shared=True)  # ranks do so together
        with pytest.raises(ValueError, match=f"{said}, so .* 'synchronous', without accumulate"):
            r.try_out((X, YES), shared=True, by_team=False)


def test_losses_that_are_means_are_taken():
    def per_sample(y, p):
        return keras.ops.mean(keras.ops.square(y - p), axis=-1)

    for loss in (per_sample, batch_mean):
        replica.of(network(1, "sigmoid", loss, [])).try_out((X, YES), shared=True)


def test_synchronized_batch_normalisation_is_refused_where_ranks_share_a_batch():
    inputs = keras.Input((2,))
    x = layers.BatchNormalization(synchronized=True, name="norm")(inputs)
    r = replica.of(compiled(inputs, layers.Dense(1)(x), loss="mse", metrics=[]))
    r.try_out((X, YES), shared=False)
    with pytest.raises(ValueError, match=r"'norm' has synchronized=True.*layers\.convert"):
        r.try_out((X, YES), shared=True)


def test_a_metric_of_several_numbers_is_refused():
    r = replica.of(network(3, "softmax", "categorical_crossentropy", [keras.metrics.F1Score()]))
    with pytest.raises(ValueError, match=r"'f1_score' has 3 values.*average='macro'"):
        r.evaluate([(X, np.eye(3, dtype=np.float32)[KINDS])])
