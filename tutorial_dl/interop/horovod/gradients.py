"""`Reducer`: reduces gradients over all ranks, for the optimizer and the tape."""

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
    """Reduces gradients over all ranks, with one message per dtype.

    Args:
        op: The reduction; every rank has the same weight, whatever its number of samples.
        compression: The dtype in which gradients are sent.
        sparse_as_dense: Convert tf.IndexedSlices to dense tensors first.
        predivide: For Average: divide by it before the sum, multiply by it after.
        groups: None: one message; a number of messages; or lists of variables, one message per list
            (and one for each variable in no list).
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
            raise ValueError(f"groups must be a number or lists of variables, got {n!r}")

    @property
    def alone(self) -> bool:
        """Whether there is no other rank to reduce with."""
        return not self.process_set.included() or self.process_set.size() == 1

    def register_local(self, variable) -> None:
        """Keep each rank's own gradient of this variable, without reducing it."""
        self.local.add(key(variable))

    def reduce(self, gradients: Iterable, variables: Sequence) -> list:
        """Reduce the gradients; None stays None. Equal on all ranks, except for local variables."""
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
    """A key that is the same for a Keras variable and the TensorFlow variable in it."""
    # Keras's `value` may be a cast copy of it.
    return id(variable._value if isinstance(variable, keras.Variable) else variable)


def trainable_in(layers) -> list:
    """The trainable variables of one or several layers; raises TypeError for other objects."""
    layers = [layers] if isinstance(layers, keras.layers.Layer) else list(layers or [])
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise TypeError(f"local_layers must be Keras layers, got a {type(layer).__name__}")
    return [v for layer in layers for v in layer.trainable_variables]
