"""Errors of a user's model and data are one line that says what would be right."""

import numpy as np
import pytest
from commands_here import run_command
from keras_networks import compiled, keras, layers

from tutorial_dl import replica
from tutorial_dl.runtime.errors import telling_line

pytestmark = pytest.mark.xdist_group("keras")

SPARSE = "sparse_categorical_crossentropy"

# As in most scripts, data and model import Keras at the top.
FILE = """
import keras
import numpy as np

def load():
    x, y = np.ones((40, 4), np.float32), np.arange(40) % 10
    return (x, y), (x, y)

def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    return model
"""


def test_one_line_and_no_chatter(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    done = run_command("train", "--model", "mine:build", "--data", "mine:load", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "model 'sequential': target 5 is no class" in done.stderr, done.stderr
    assert "takes whole numbers from 0 to 4, as it has 5 outputs" in done.stderr


@pytest.mark.parametrize(
    ("made_for", "shape", "loss", "words"),
    [
        ((4,), (3,), SPARSE, ["have shape (n, 3), expected (n, 4)"]),
        ((8, 8), (64,), SPARSE, ["have shape (n, 64), expected (n, 8, 8)"]),
        ((64,), (8, 8, 1), SPARSE, ["have shape (n, 8, 8, 1), expected (n, 64)"]),
        ((4,), (4,), "categorical_crossentropy", ["one-hot targets", f"use '{SPARSE}'"]),
    ],
)
def test_what_does_not_fit_is_said(made_for, shape, loss, words):
    model = keras.Sequential([keras.Input(made_for), layers.Flatten(), layers.Dense(10, "softmax")])
    model.compile(loss=loss)
    mine = replica.of(model)
    with pytest.raises(ValueError) as error:
        mine.evaluate([(np.ones((2, *shape), np.float32), np.arange(2))])
    line = telling_line(error.value)
    assert all(word in line for word in words), line
    assert "\n" not in line and "\x1b" not in line and len(line) < 300, line
    assert telling_line(ValueError(line)) == line  # a shortened line does not change


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ({"a": "mse"}, "output 'b' has no loss: add one to the dict of losses, or None"),
        ({"a": "mse", "b": None}, ""),
    ],
)
def test_an_output_without_a_loss_is_named(losses, words):
    inputs = keras.Input((4,))
    outputs = [layers.Dense(1, name="a")(inputs), layers.Dense(1, name="b")(inputs)]
    mine = replica.of(compiled(inputs, outputs, loss=losses, metrics=None))
    ones = np.ones((2, 1), np.float32)
    batches = [(np.ones((2, 4), np.float32), (ones, ones))]
    if words:
        with pytest.raises(ValueError, match=words):
            mine.evaluate(batches)
    else:
        assert mine.evaluate(batches)["loss"] >= 0


def test_a_metric_that_fails_is_named():
    """The area under a curve needs a column of zeros and ones for each class."""
    inputs = keras.Input((4,))
    outputs = layers.Dense(10, "softmax")(inputs)
    mine = replica.of(compiled(inputs, outputs, metrics=[keras.metrics.AUC(name="area")]))
    with pytest.raises(ValueError, match=r"'area' does not fit targets of shape \(n\) and outputs"):
        mine.evaluate([(np.ones((2, 4), np.float32), np.arange(2))])


def test_other_messages():
    for text, line in (
        ("one\ntwo", "one"),
        ("\n \x1b[1mtwo\x1b[0m\nthree", "two"),
        ("", "no message"),
        ("Graph execution error:\n\n", "Graph execution error:"),
    ):
        assert telling_line(ValueError(text)) == line
