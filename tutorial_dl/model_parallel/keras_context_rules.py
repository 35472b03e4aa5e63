"""Which layers and operations of a Keras model compute each position of a sequence by itself.

Positions are axis 1. A layer of a user's own says so by `by_position = True` in its class.
"""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

import numpy as np

from tutorial_dl.model_parallel.keras_graph import Call
from tutorial_dl.model_parallel.keras_layers import PartOfDropout
from tutorial_dl.model_parallel.keras_rules import FUNCTIONS, OPERATIONS, of_keras
from tutorial_dl.replica.keras.graphs import keras

ACTIVATIONS = FUNCTIONS | {"softmax", "log_softmax"}  # the latter along the last axis
MERGING = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
NORMS = ("LayerNormalization", "RMSNormalization", "UnitNormalization")
SIMPLE = ("ReLU", "LeakyReLU", "ELU", "Identity", "Embedding")
ONES = frozenset((
    "Cast", "Cos", "Divide", "Equal", "Floor", "Greater", "Less", "LogicalAnd", "LogicalNot",
    "LogicalOr", "Log", "NotEqual", "OnesLike", "Power", "Sign", "Sin", "Sqrt", "TrueDivide",
    "Where", "ZerosLike",
)) | OPERATIONS  # fmt: skip
WHOLE = "let the model predict at each position, and leave it out"
INSTEAD = {
    "Flatten": WHOLE,
    "Reshape": WHOLE,
    "Permute": WHOLE,
    "RepeatVector": WHOLE,
    "BatchNormalization": "use LayerNormalization",
    "GroupNormalization": "use LayerNormalization",
    "Bidirectional": "use MultiHeadAttention",
    "TimeDistributed": "use the layer within it, if that takes (samples, positions, ...)",
    "Attention": "use MultiHeadAttention",
    "AdditiveAttention": "use MultiHeadAttention",
    "GroupQueryAttention": "use MultiHeadAttention",
    "GaussianNoise": "use Dropout",
    "GaussianDropout": "use Dropout",
    "AlphaDropout": "use Dropout",
}


def refuse(what: str, instead: str) -> NoReturn:
    raise ValueError(f"context parallelism can't compute {what}: {instead}")


def named(operation: Any) -> str:
    kind = type(operation).__name__
    if isinstance(operation, keras.Layer):
        return f"layer '{operation.name}', a {kind}, on parts of sequences"
    return f"operation '{operation.name}', {kind}, on parts of sequences"


def instead_of(operation: Any) -> str:
    """What would work in place of a layer or operation that mixes positions, or may do so."""
    kind = type(operation).__name__
    if kind in INSTEAD:
        return INSTEAD[kind]
    if isinstance(operation, keras.layers.RNN):
        return "use MultiHeadAttention"
    if isinstance(operation, keras.Model):
        return "use its layers in the model itself"
    if "Pooling" in kind:
        return WHOLE
    if "Conv" in kind:
        return "use Dense, or Conv1D with kernel_size=1, and MultiHeadAttention"
    if isinstance(operation, keras.Layer) and not of_keras(operation):
        return "if it computes each position by itself, give its class by_position = True"
    return (
        "only MultiHeadAttention may mix positions; all else must compute each by itself, as "
        "Dense, Embedding and LayerNormalization do"
    )


def by_position(call: Call, length: int) -> bool:
    """Whether a call computes each of `length` positions of its output from the same of its inputs.

    Then it can compute a part of the sequence from this part of its inputs. Random layers can't.
    """
    operation, shapes = call.operation, [tuple(t.shape) for t in call.input_tensors]
    given = [*shapes, *(tuple(t.shape) for t in call.output_tensors)]
    if not all(len(shape) > 1 and shape[1] == length for shape in given):
        return False
    dimensions = {len(shape) for shape in shapes}
    if getattr(operation, "activity_regularizer", None):
        return False  # its loss is of the whole tensor
    activation = getattr(operation, "activation", None)
    if activation is not None and getattr(activation, "__name__", "") not in ACTIVATIONS:
        return False  # a function of the user's own, which may look at all positions
    if getattr(operation, "by_position", False):
        return True
    kind, least, last = type(operation).__name__, min(dimensions), min(dimensions) - 1
    if not isinstance(operation, keras.Layer):
        axis = getattr(operation, "axis", None)
        if kind in ("Softmax", "LogSoftmax", "Concatenate"):
            return len(dimensions) == 1 and isinstance(axis, int) and axis % least > 1
        if kind == "ExpandDims":
            return axis % (least + 1) > 1
        return kind in ONES and len(dimensions) == 1
    if not of_keras(operation):
        return False
    if kind in ("Dense", "Activation"):
        name = getattr(activation, "__name__", "linear")
        return last > 1 or (kind == "Activation" and name in FUNCTIONS)
    if kind in NORMS or kind == "Softmax":
        axes = np.ravel(operation.axis).tolist()
        return all(axis % least > 1 for axis in axes)
    if kind in MERGING:
        along = kind != "Concatenate" or operation.axis % least > 1
        return len(dimensions) == 1 and along
    if kind == "Conv1D":
        one = operation.kernel_size == operation.strides == (1,)
        return one and operation.data_format == "channels_last"
    return kind in SIMPLE


def is_dropout(operation: Any) -> bool:
    """Whether it is a Dropout of Keras's (a user's subclass may compute anything), or a part."""
    if type(operation) is PartOfDropout:
        return True
    return isinstance(operation, keras.layers.Dropout) and of_keras(operation)


def positions_in(call: Call, length: int) -> bool:
    return all(len(t.shape) > 1 and t.shape[1] == length for t in call.input_tensors)


def part_of_constants(call: Call, given: Any, length: int, mine: np.ndarray) -> Any:
    """The arguments of a call, with these positions of arrays along all `length` positions."""
    dimensions = max(len(t.shape) for t in call.input_tensors)

    def kept(value: Any) -> Any:
        if isinstance(value, keras.KerasTensor | str):
            return value
        if len(np.shape(value)) < dimensions - 1:
            return value
        if isinstance(value, keras.Variable):
            refuse(
                f"operation '{call.operation.name}' on parts of sequences",
                f"it takes weights of a layer, '{value.path}': let a layer of that name compute it",
            )
        axis = np.ndim(value) - (dimensions - 1)  # of positions, as arrays are broadcast
        size = np.shape(value)[axis]
        return np.take(value, mine, axis) if size == length and size > 1 else value

    if isinstance(call.operation, keras.Layer) or dimensions < 2:
        return given
    return keras.tree.map_structure(kept, given)


def attention(call: Call, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The arguments of a MultiHeadAttention by name; ValueError for what a ring can't compute."""
    layer = call.operation
    signature = inspect.signature(keras.layers.MultiHeadAttention.call)
    given = signature.bind(layer, *args, **kwargs).arguments
    what = f"layer '{layer.name}' on parts of sequences"
    for name in ("query_mask", "value_mask", "key_mask", "attention_mask"):
        if given.get(name) is not None:
            refuse(what, f"it is given {name}; leave it out, or use use_causal_mask=True")
    if given.get("return_attention_scores"):
        refuse(what, "it returns its scores, which no rank has; leave them out")
    if getattr(layer, "_activity_regularizer", None):
        refuse(what, "it has an activity_regularizer, which is of all positions; leave it out")
    if layer.dropout:
        refuse(what, "it has dropout of its own; use a Dropout layer behind it")
    if getattr(layer, "_use_gate", False) or getattr(layer, "_sliding_window", None):
        refuse(what, "it has a gate or a sliding window; leave it out")
    if layer.value_dim != layer.key_dim:
        refuse(what, f"value_dim must be key_dim, {layer.key_dim}, got {layer.value_dim}")
    shapes = [tuple(t.shape) for t in call.input_tensors]
    if {len(shape) for shape in shapes} != {3} or len({shape[1] for shape in shapes}) > 1:
        refuse(what, f"queries, keys and values must be (samples, positions, width), got {shapes}")
    return given
