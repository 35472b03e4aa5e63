"""`evaluate` and `predict`: a saved model on data, by several ranks."""

import functools
import io
import json
import sys
import warnings
from unittest import mock

import numpy as np
import pytest
from commands_here import run_command
from commands_on_ranks import json_values, run_lines
from mpi4py import MPI
from rank_tests import with_ranks

from tutorial_dl import data, models
from tutorial_dl.cli import applying


@pytest.mark.xdist_group("keras")
def test_a_keras_model_is_evaluated_and_predicts_on_two_ranks(on_ranks, tmp_path):
    train = ["train", "--model", "mlp", "--epochs", "1", "--quiet", "--save", "m.keras"]
    evaluate = ["evaluate", "--model-file", "m.keras", "--json", "-"]
    lines = [[*train, "--json", "-"], evaluate]
    expected, found = json_values(on_ranks(2, run_lines, str(tmp_path), lines, keras=True))
    assert expected["ranks"] == 2
    assert found["loss"] == pytest.approx(expected["val_loss"], rel=1e-4)
    assert found["accuracy"] == expected["val_accuracy"]
    predict = ["predict", "--model-file", "m.keras", "--out", "p.npy"]
    printed = on_ranks(2, run_lines, str(tmp_path), [predict], keras=True)
    outputs = np.load(tmp_path / "p.npy")
    labels = data.load("digits").validation.targets
    assert outputs.shape == (found["samples"], 10)
    words = f"wrote p.npy: outputs for {len(labels)} samples, shape ({len(labels)}, 10)\n"
    assert printed == words
    assert (outputs.argmax(axis=1) == labels).mean() == pytest.approx(found["accuracy"])


@pytest.mark.xdist_group("keras")
@with_ranks(2, keras=True)
def test_a_model_that_keras_saved_is_loaded_without_a_warning(folder):
    """A file of Keras's own has no state of an optimizer that has not trained: no word of that."""
    digits, file = data.digits(), f"{folder}/{MPI.COMM_WORLD.rank}.keras"
    model = models.build("mlp", digits, seed=0)
    model.model.save(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = applying.load(file, None, digits).predict(digits.validation.inputs[:3])
    np.testing.assert_array_equal(found, model.predict(digits.validation.inputs[:3]))


@pytest.mark.xdist_group("keras")
@with_ranks(1, keras=True)
def test_code_in_a_file_is_run_only_if_one_says_so(folder):
    import keras

    inputs = keras.Input((8, 8, 1))
    outputs = keras.layers.Flatten()(keras.layers.Lambda(lambda x: 3 * x, name="triple")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(10)(outputs))
    model.compile("sgd", keras.losses.MeanSquaredError())  # (Keras can't load "mse" from .h5)
    digits = data.digits()
    for file in (f"{folder}/m.keras", f"{folder}/m.h5"):
        model.save(file)
        with pytest.raises(ValueError, match=r"Lambda layer 'triple' is Python code.*: --run-code"):
            applying.load(file, None, digits)
        found = applying.load(file, None, digits, run_code=True)
        x = digits.validation.inputs[:3]
        np.testing.assert_allclose(found.predict(x), model.predict(x, verbose=0), rtol=1e-6)


MINE = """
import keras

class MeanOfBatch(keras.metrics.Metric):
    def __init__(self, name="of_batch", **options):
        super().__init__(name=name, **options)
        self.value = self.add_weight(name="value", initializer="zeros")
    def update_state(self, y, outputs, sample_weight=None):
        self.value.assign(keras.ops.mean(outputs[:, 0]))
    def result(self):
        return self.value

def build():
    layers = [keras.layers.Flatten(), keras.layers.Dense(8), keras.layers.BatchNormalization(),
              keras.layers.Dense(10, "softmax")]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    metrics = [MeanOfBatch()]
    model.compile(keras.optimizers.SGD(0.02), "sparse_categorical_crossentropy", metrics=metrics)
    return model

keras.saving.register_keras_serializable()(MeanOfBatch)
"""


@pytest.mark.xdist_group("keras")
def test_a_metric_of_ones_own_and_synchronised_normalisation(on_ranks, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    mine = ["--model", "mine.py:build", "--json", "-"]
    more = ["--sync-batch-norm", "--save", "m.keras", "--quiet", "--epochs", "1"]
    evaluate = ["evaluate", "--model-file", "m.keras", "--batch-size", "100", *mine]
    lines = [["train", *mine, *more], evaluate]
    trained, found = json_values(on_ranks(2, run_lines, str(tmp_path), lines, keras=True))
    row = trained["history"][-1]
    assert 0.02 < row["of_batch"] < 0.4  # the mean probability of one class among ten
    assert found["of_batch"] == pytest.approx(row["val_of_batch"], rel=1e-4)
    assert found["loss"] == pytest.approx(row["val_loss"], rel=1e-4)


def writes_a_note(folder, words):
    written = io.StringIO()
    with mock.patch.multiple(sys, stderr=written, __stderr__=written):
        run_lines(folder, [words])
    note = "note: trained with sgd, learning rate 0.01 (--learning-rate); the model was compiled"
    assert MPI.COMM_WORLD.rank or note in written.getvalue(), written.getvalue()


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_an_option_that_replaces_what_was_compiled_is_noted(on_ranks, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    train = ["train", "--model", "mine.py:build", "--epochs", "1", "--learning-rate", "0.01"]
    on_ranks(2, writes_a_note, str(tmp_path), [*train, "--quiet"], keras=True)


@pytest.mark.thorough
def test_a_model_of_arrays(tmp_path):
    command = functools.partial(run_command, cwd=tmp_path)
    train = ["train", "--model", "curve", "--data", "curve", "--quiet", "--json", "-"]
    trained = command(*train, "--save", "m.npz")
    assert trained.returncode == 0, trained.stderr
    words = ["--model-file", "m.npz", "--data", "curve"]
    done = command("evaluate", *words, "--model", "curve", "--part", "validation", "-n", "2")
    loss = json.loads(trained.stdout)["val_loss"]
    assert done.stdout.strip().endswith(f" samples: loss {loss:.4g}"), done.stderr
    wrong = command("evaluate", *words, "--model", "dense")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1
    assert "error: m.npz has arrays" in wrong.stderr
