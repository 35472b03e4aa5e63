"""Gradients of all ranks made one: what the optimizer and the tape have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .collectives import grouped_allreduce
from .compression import Compression
from .process_sets import ProcessSet, global_process_set
from .reductions import Average, reduction


@dataclass(eq=False)
class Reducer:
    """Reduces the gradients of all ranks, all of one dtype in one message.

    Args:
        op: How; the ranks' gradients count alike, whatever the number of their samples.
        compression: What gradients travel as.
        sparse_as_dense: Make dense tensors of tf.IndexedSlices first.
        predivide: For Average: divide by it before the sum, multiply after it.
        groups: None for one message; a number of messages; or lists of variables, each list a
            message (variables in no list: a message each).
        process_set: The ranks; a rank that is not in it keeps its own gradients.
        scale_local: Divide the gradients of local variables by the number of ranks.
    """

    op: int = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0
    groups: int | Sequence | None = None
    process_set: ProcessSet = global_process_set
    scale_local: bool = True
    local: set = field(default_factory=set)
    variables: Sequence = ()  # of the update that an optimizer is in
    calls: int = 0

    def __post_init__(self):
        self.op = reduction(self.op)
        if self.predivide != 1.0 and self.op != Average:
            raise ValueError(f"gradient_predivide_factor is for op Average, not {self.op}")
        n = self.groups
        if isinstance(n, bool) or not (n is None or isinstance(n, (int, list, tuple))):
            raise ValueError(f"groups is {n!r}; a number, or lists of variables, is right")

    @property
    def alone(self) -> bool:
        """Whether there is nobody to reduce with."""
        return not self.process_set.included() or self.process_set.size() == 1

    def register_local(self, variable) -> None:
        """Of this variable every rank keeps its own gradient."""
        self.local.add(key(variable))

    def reduce(self, gradients: Iterable, variables: Sequence) -> list:
        """The gradients, reduced; None stays None. The same on all ranks, local ones excepted."""
        self.calls += 1
        out = list(gradients)
        if self.alone:
            return out
        shared = []
        for i, (g, v) in enumerate(zip(out, variables, strict=True)):
            if g is None:
                continue
            if key(v) in self.local:
                if self.scale_local:
                    out[i] = scaled(g, 1 / self.process_set.size())
            else:
                shared.append(i)
                if self.sparse_as_dense and isinstance(g, tf.IndexedSlices):
                    out[i] = tf.convert_to_tensor(g)
        for group in self._groups(shared, variables):
            reduced = grouped_allreduce(
                [out[i] for i in group],
                op=self.op,
                compression=self.compression,
                prescale_factor=1.0 / self.predivide,
                postscale_factor=self.predivide,
                process_set=self.process_set,
            )
            for i, g in zip(group, reduced, strict=True):
                out[i] = g
        return out

    def _groups(self, indices: list[int], variables: Sequence) -> list[list[int]]:
        if isinstance(self.groups, (list, tuple)):
            left = {key(variables[i]): i for i in indices}
            groups = [[left.pop(key(v)) for v in g if key(v) in left] for g in self.groups]
            groups += [[i] for i in left.values()]
        else:
            n = max(1, min(self.groups or 1, len(indices)))
            groups = [list(part) for part in np.array_split(indices, n)]
        return [g for g in groups if g]


def scaled(gradient, factor: float):
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def key(variable) -> int:
    """The same for a Keras variable and the TensorFlow variable in it."""
    return id(variable._value if isinstance(variable, keras.Variable) else variable)


def trainable_in(layers) -> list:
    """The trainable variables of a layer, or of several; TypeError for what is no layer."""
    layers = [layers] if isinstance(layers, keras.layers.Layer) else list(layers or [])
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise TypeError(f"local_layers has a {type(layer).__name__}; layers are needed")
    return [v for layer in layers for v in layer.trainable_variables]
