"""Which layers of a Keras model can be cut how, and a table of rules that fits a model.

A table gives patterns of layers' names a kind: {"block_*_dense_1": "columns"}. `found` makes one
for a model: attention by heads; and each dense layer or convolution whose output only the next one
of its sort uses, with nothing but functions of single numbers in between, makes a pair with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from tutorial_dl.model_parallel import tensor
from tutorial_dl.model_parallel.keras_graph import Call, Graph
from tutorial_dl.replica.keras.graphs import keras

CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
ABLE: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((keras.layers.Dense, *CONVOLUTIONS), ("columns", "rows")),
    keras.layers.MultiHeadAttention: ("heads",),
    keras.layers.Embedding: ("rows",),
}
# Functions of single numbers, and layers and operations that compute such: a slice of the result
# needs only this slice of what they are given.
FUNCTIONS = frozenset((
    "linear", "relu", "leaky_relu", "relu6", "celu", "elu", "selu", "softplus", "softsign",
    "squareplus", "soft_shrink", "silu", "swish", "gelu", "tanh", "tanh_shrink", "threshold",
    "sigmoid", "exponential", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh",
    "hard_shrink", "mish", "log_sigmoid",
))  # fmt: skip
OPERATIONS = frozenset((
    "Relu", "LeakyRelu", "Relu6", "Celu", "Elu", "Selu", "Softplus", "Softsign", "Squareplus",
    "SoftShrink", "Silu", "Gelu", "Tanh", "TanhShrink", "Threshold", "Sigmoid", "Exp",
    "HardSigmoid", "HardSilu", "HardTanh", "HardShrink", "LogSigmoid", "Square", "Absolute",
    "Negative", "Multiply", "Add", "Subtract", "Maximum", "Minimum",
))  # fmt: skip
LAYERS = frozenset((
    "ReLU", "LeakyReLU", "ELU", "Multiply", "Add", "Subtract", "Maximum", "Minimum",
))  # fmt: skip


def by_number(layer: Any) -> bool:
    """Whether the activation of a layer is a function of single numbers."""
    return getattr(layer.activation, "__name__", "") in FUNCTIONS


def of_keras(operation: Any) -> bool:
    return type(operation).__module__.split(".")[0] == "keras"


def carries(call: Call) -> bool:
    """Whether a call computes a slice of its output from the same slices of its inputs."""
    operation = call.operation
    name = type(operation).__name__
    if not of_keras(operation):
        return False  # a subclass of the user's may compute anything
    if getattr(operation, "activity_regularizer", None):
        return False  # its loss is of the whole tensor
    if isinstance(operation, keras.layers.Activation):
        return by_number(operation)
    if isinstance(operation, keras.layers.Dropout):
        return operation.noise_shape is None
    if isinstance(operation, keras.Layer):
        return name in LAYERS
    constants = (one for one in call.constants if one is not None)
    return name in OPERATIONS and all(np.ndim(one) == 0 for one in constants)


def rules_for(graph: Graph) -> dict[str, str]:
    """A table for a model, of layers' names.

    Raises:
        ValueError: If there is nothing that could be cut.
    """
    rules: dict[str, str] = {}
    users: dict[int, list[Any]] = {}
    for call in graph.calls:
        for t in {id(t): t for t in call.input_tensors}.values():
            users.setdefault(id(t), []).append(call)
    outputs = {id(t) for t in graph.outputs}
    times = [call.operation.name for call in graph.calls]
    for call in graph.calls:
        layer = call.operation
        if layer.name in rules or times.count(layer.name) > 1:
            continue
        if type(layer) is keras.layers.MultiHeadAttention:
            rules[layer.name] = "heads"
        elif "columns" in ABLE.get(type(layer), ()) and by_number(layer):
            last = call
            while True:
                (given,) = last.output_tensors
                after = users.get(id(given), [])
                if id(given) in outputs or len(after) != 1 or len(after[0].input_tensors) != 1:
                    break
                (last,) = after
                if type(last.operation) is type(layer) and times.count(last.operation.name) == 1:
                    rules |= {layer.name: "columns", last.operation.name: "rows"}
                    break
                if not carries(last):
                    break
    if not rules:
        raise ValueError(
            f"model '{graph.model.name}' has no layers to cut: neither MultiHeadAttention, nor two "
            "Dense or two convolutional layers in a row; use --pipeline, or no model parallelism"
        )
    return rules


def check_rules(model: Any, rules: Mapping[str, str], cuttable: set[str]) -> None:
    """Raise ValueError for a rule of no kind, or one that fits no layer that can be cut."""
    layers = model._flatten_layers(include_self=False)
    every = [layer.name for layer in layers if layer.weights]
    tensor.check_rules(rules, every, sorted(cuttable, key=every.index))
    for pattern, kind in rules.items():
        names = [name for name in every if fnmatchcase(name, pattern)]
        if kind != "replicate" and not set(names) & cuttable:
            raise ValueError(
                f"rule '{pattern}': layer '{names[0]}' lies within another layer, and only layers "
                "of the model itself can be cut"
            )


def check_layer(layer: Any, kind: str, ranks: int) -> int:
    """Units, channels, heads or rows per rank; ValueError with the layer's name if it can't be."""
    tensor.check_kind(layer, kind, ABLE.get(type(layer), ()))

    def refuse(what: str) -> None:
        raise ValueError(f"layer '{layer.name}', cut by {kind}, {what}: replicate it")

    for name in vars(layer):
        if name.lstrip("_").endswith(("_regularizer", "_constraint")) and getattr(layer, name):
            refuse(f"has a {name.lstrip('_')}")
    if not layer.trainable:
        refuse("is frozen (trainable=False)")
    if getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None):
        refuse("has LoRA or quantised weights")
    if layer.non_trainable_weights:
        refuse("has weights that are frozen")
    if kind == "heads" and layer.use_bias and len(layer.output_dense.bias.shape) > 1:
        refuse("has an output_shape of several axes")
    if kind == "columns" and not by_number(layer):
        name = getattr(layer.activation, "__name__", type(layer.activation).__name__)
        refuse(f"has activation '{name}', which is not known to take each number by itself")
    if isinstance(layer, CONVOLUTIONS) and layer.groups > 1:
        refuse(f"has {layer.groups} groups")
    if isinstance(layer, CONVOLUTIONS) and layer.data_format != "channels_last":
        refuse("has its channels first")
    if kind == "heads" and layer.dropout:
        refuse("has dropout of its own, whose masks would differ from those of one rank")
    if kind == "heads" and getattr(layer, "_use_gate", False):
        refuse("has a gate")
    if isinstance(layer, keras.layers.Embedding) and layer.mask_zero:
        refuse("makes a mask")
    counts = {
        "heads": lambda: (layer.num_heads, "heads"),
        "columns": lambda: (layer.kernel.shape[-1], "units"),
        "rows": lambda: (layer.kernel.shape[-2], "inputs"),
    }
    if isinstance(layer, keras.layers.Embedding):
        count, what = layer.input_dim, "rows"
    else:
        count, what = counts[kind]()
    if isinstance(layer, CONVOLUTIONS):
        what = "channels" if kind == "columns" else "input channels"
    return tensor.share(layer, count, what, ranks)
