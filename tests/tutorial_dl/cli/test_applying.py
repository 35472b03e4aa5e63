"""`evaluate` and `predict`: a saved model on data, by several ranks."""

import contextlib
import io
import json
import subprocess
import sys
import warnings
from unittest import mock

import numpy as np
import pytest
from commands_here import run_here
from mpi4py import MPI

from tutorial_dl import __main__, data


@pytest.fixture
def command(tmp_path):
    def run(*words):
        line = [sys.executable, "-m", "tutorial_dl", *words]
        return subprocess.run(
            line,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=600,
        )

    return run


def commands(folder, lines):
    """Run command lines in these ranks, which have loaded Keras before."""
    with contextlib.chdir(folder):
        for words in lines:
            with mock.patch.object(sys, "argv", ["tutorial_dl", *words]):
                with pytest.raises(SystemExit) as ended:
                    __main__.main()
                assert not ended.value.code, words


def json_values(printed):
    """The JSON values in what commands have printed."""
    found, decoder = [], json.JSONDecoder()
    while printed := printed.lstrip():
        value, end = decoder.raw_decode(printed)
        found.append(value)
        printed = printed[end:]
    return found


@pytest.mark.xdist_group("keras")
def test_a_keras_model_is_evaluated_and_predicts_on_two_ranks(on_ranks, tmp_path):
    train = ["train", "--model", "mlp", "--epochs", "1", "--quiet", "--save", "m.keras"]
    evaluate = ["evaluate", "--model-file", "m.keras", "--json", "-"]
    lines = [[*train, "--json", "-"], evaluate]
    expected, found = json_values(on_ranks(2, commands, str(tmp_path), lines, keras=True))
    assert expected["ranks"] == 2
    assert found["loss"] == pytest.approx(expected["val_loss"], rel=1e-4)
    assert found["accuracy"] == expected["val_accuracy"]
    predict = ["predict", "--model-file", "m.keras", "--out", "p.npy"]
    printed = on_ranks(2, commands, str(tmp_path), [predict], keras=True)
    outputs = np.load(tmp_path / "p.npy")
    labels = data.load("digits").validation.targets
    assert outputs.shape == (found["samples"], 10)
    words = f"wrote p.npy: outputs for {len(labels)} samples, shape ({len(labels)}, 10)\n"
    assert printed == words
    assert (outputs.argmax(axis=1) == labels).mean() == pytest.approx(found["accuracy"])


def saved_by_keras(folder):
    """A file of Keras's own has no state of an optimizer that has not trained: no word of that."""
    from tutorial_dl import models
    from tutorial_dl.cli import applying

    digits, file = data.digits(), f"{folder}/{MPI.COMM_WORLD.rank}.keras"
    model = models.build("mlp", digits, seed=0)
    model.model.save(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = applying.load(file, None, digits).predict(digits.validation.inputs[:3])
    np.testing.assert_array_equal(found, model.predict(digits.validation.inputs[:3]))


@pytest.mark.xdist_group("keras")
def test_a_model_that_keras_saved_is_loaded_without_a_warning(on_ranks, tmp_path):
    on_ranks(2, saved_by_keras, str(tmp_path), keras=True)


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
    trained, found = json_values(on_ranks(2, commands, str(tmp_path), lines, keras=True))
    row = trained["history"][-1]
    assert 0.02 < row["of_batch"] < 0.4  # the mean probability of one class among ten
    assert found["of_batch"] == pytest.approx(row["val_of_batch"], rel=1e-4)
    assert found["loss"] == pytest.approx(row["val_loss"], rel=1e-4)


def writes_a_note(folder, words):
    written = io.StringIO()
    with mock.patch.multiple(sys, stderr=written, __stderr__=written):
        commands(folder, [words])
    note = "note: trained with sgd, learning rate 0.01 (--learning-rate); the model was compiled"
    assert MPI.COMM_WORLD.rank or note in written.getvalue(), written.getvalue()


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_an_option_that_replaces_what_was_compiled_is_noted(on_ranks, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    train = ["train", "--model", "mine.py:build", "--epochs", "1", "--learning-rate", "0.01"]
    on_ranks(2, writes_a_note, str(tmp_path), [*train, "--quiet"], keras=True)


@pytest.mark.thorough
def test_a_model_of_arrays(command, tmp_path):
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


WRONG = [
    (["evaluate", "--model-file", "no.keras"], "there is no model file no.keras"),
    (["evaluate", "--model-file", "my_file.py"], "must end in .keras, .h5 or .npz"),
    (["evaluate", "--model-file", "a.npz"], "give the model that they belong to: --model"),
    (["evaluate", "--model-file", "b.keras", "--data", "nosuch"], "data 'nosuch': expected"),
    (["predict", "--model-file", "b.keras", "--out", "p.txt"], "ends in .npy or .npz"),
    (["predict", "--model-file", "b.keras", "--out", "no/p.npy"], "there is no folder"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_options_are_told_in_one_line(monkeypatch, capfd, tmp_path, words, message):
    for name in ("a.npz", "b.keras", "my_file.py"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    done = run_here(capfd, *words)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not done.stdout
