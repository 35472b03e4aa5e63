"""Why a batch does not fit a Keras model, in one line that says what would: `shape_error`.

Keras and TensorFlow say it too, but in words about tensors and graphs, often in many lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_kernels.errors import message_of
from tutorial_dl.replica.keras.metrics import is_empty
from tutorial_dl.tensorflow_chatter import quiet
from tutorial_dl.words import near

with quiet():
    import keras
    import tensorflow as tf

SPARSE = "sparse_categorical_crossentropy"
LONGEST = 200  # characters of a message


def shape_error(model: keras.Model, x: Any, y: Any) -> ValueError | None:
    """After a batch has failed: what about it does not fit the model, if that can be told.

    Args:
        x, y: Inputs and targets as arrays, or tuples or dicts of arrays; y is () without targets.
    """
    try:
        outputs = model(keras.tree.map_structure(tf.constant, x), training=False)
    except Exception as error:
        words = _inputs(model, x) or f"it fails on a batch: {_first_line(error)}"
    else:
        words = _targets(model, y, outputs)
    return words and _error(model, words)


def wrong_label(model: keras.Model, y: Any) -> ValueError | None:
    """The first target that is none of the classes of a loss of labels, if there is one."""
    for loss, target, output in _pairs(model, y, getattr(model, "outputs", None) or []):
        if name_of(loss) != SPARSE or not np.size(target):
            continue
        labels, classes = np.ravel(target), output.shape[-1]
        wrong = (labels < 0) | (labels >= classes) | (labels != np.round(labels))
        wrong &= labels != getattr(loss, "ignore_class", None)
        if wrong.any():
            return _error(
                model,
                f"target {labels[wrong][0]} is no class: its loss '{SPARSE}' takes whole numbers "
                f"from 0 to {classes - 1}, as it has {classes} outputs",
            )
    return None


def _error(model: keras.Model, words: str) -> ValueError:
    line = f"model '{model.name}': {words}"
    return ValueError(line if len(line) <= LONGEST else line[: LONGEST - 3] + "...")


def _inputs(model: keras.Model, x: Any) -> str | None:
    wanted = keras.tree.flatten(getattr(model, "inputs", None) or [])
    if not wanted:
        return None
    names = [one.name for one in wanted]
    if isinstance(x, dict) and set(x) != set(names):
        return f"inputs are {', '.join(map(repr, x))}, expected {', '.join(map(repr, names))}"
    given = [x[name] for name in names] if isinstance(x, dict) else keras.tree.flatten(x)
    if len(given) != len(wanted):
        return (
            f"it has {len(wanted)} inputs ({', '.join(names)}), got {len(given)}: give x as a "
            "tuple of arrays, or as a dict by name"
        )
    for one, spec in zip(given, wanted, strict=True):
        if one.dtype.kind in "USO" and spec.dtype != "string":
            return (
                f"inputs are text, expected {spec.dtype}: let it begin with "
                "keras.layers.TextVectorization or StringLookup, or encode the text as numbers"
            )
        if not _fits(one.shape[1:], spec.shape[1:]):
            return f"inputs have shape {_shape(one)}, expected {_shape(spec)}"
    return None


def _targets(model: keras.Model, y: Any, outputs: Any) -> str | None:
    if is_empty(y):
        return "there are no targets, but its loss needs them"
    losses, known = model.loss, list(getattr(model, "output_names", None) or [])
    if isinstance(losses, dict) and (left := [name for name in known if name not in losses]):
        return f"output '{left[0]}' has no loss: add one to the dict of losses, or None"
    pairs = [pair for pair in _pairs(model, y, outputs) if pair[0] is not None]
    for loss, target, output in pairs:
        name, have, out = name_of(loss), _shape(target), _shape(output)
        if isinstance(loss, str) and not _known(loss):
            meant = near(loss, [n for n in vars(keras.losses) if n.islower()])
            return f"there is no loss '{loss}'" + (f": did you mean '{meant}'?" if meant else "")
        like = _without_ones(target) == _without_ones(output)
        if name == SPARSE and like and np.shape(output)[-1] > 1:
            return (
                f"loss '{name}' takes labels of shape {_shape(output, -1)}, got targets of shape "
                f"{have}: use 'categorical_crossentropy', or y.argmax(axis=-1)"
            )
        if name == "categorical_crossentropy" and np.ndim(target) < np.ndim(output):
            return (
                f"loss '{name}' takes one-hot targets of shape {out}, got {have}: use "
                f"'{SPARSE}', or keras.utils.to_categorical(y)"
            )
        if name != SPARSE and not like and _fails(loss, target, output):
            return f"loss '{name}' does not fit targets of shape {have} and outputs of shape {out}"
    return None


def _pairs(model: keras.Model, y: Any, outputs: Any) -> list[tuple]:
    """(loss, target, output) for each output, if it can be told which belong together."""
    parts = [model.loss, y, outputs]
    names = list(getattr(model, "output_names", None) or [])
    if any(isinstance(part, dict) for part in parts):
        named = [_by_name(part, names) for part in parts]
        if not named[0] or not named[0].keys() == named[1].keys() == named[2].keys():
            return []
        return [tuple(part[name] for part in named) for name in named[0]]
    flat = [list(part) if isinstance(part, tuple | list) else [part] for part in parts]
    return list(zip(*flat, strict=True)) if len(set(map(len, flat))) == 1 else []


def _by_name(part: Any, names: list[str]) -> dict[str, Any]:
    if isinstance(part, dict):
        return part
    values = list(part) if isinstance(part, tuple | list) else [part]
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}


def name_of(loss: Any) -> str:
    """The name by which Keras knows a loss, or its function's."""
    found = loss if isinstance(loss, str) else getattr(loss, "name", None)
    found = found or getattr(loss, "__name__", type(loss).__name__)
    return {"SparseCategoricalCrossentropy": SPARSE}.get(found, found)


def _without_ones(array: Any) -> tuple:
    """The shape of one sample without a last axis of length 1, which losses add or drop."""
    shape = tuple(array.shape)[1:]
    return shape[:-1] if shape[-1:] == (1,) else shape


def _known(loss: str) -> bool:
    try:
        return keras.losses.get(loss) is not None
    except ValueError:
        return False


def _fails(loss: Any, target: Any, output: Any) -> bool:
    try:
        keras.losses.get(loss)(target, output)
    except Exception:
        return True
    return False


def _fits(shape: tuple, spec: tuple) -> bool:
    return len(shape) == len(spec) and all(b in (None, a) for a, b in zip(shape, spec, strict=True))


def _shape(array: Any, end: int | None = None) -> str:
    """In words, for any number n of samples: "(n, 3)"."""
    sizes = ["n" if i == 0 else str(n) for i, n in enumerate(tuple(array.shape)[:end])]
    return f"({', '.join(sizes)})"


def _first_line(error: Exception) -> str:
    """The first line of what TensorFlow says that is no heading."""
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith("call().")), type(error).__name__)
