"""Gradients are reduced over all ranks: `Reducer`, for optimizers, and the tape that uses one."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .arguments import arguments
from .basics import ProcessSet
from .collectives import grouped_allreduce, place
from .wire import Average, reduction


@dataclass(eq=False)
class Reducer:
    """Reduces gradients over all ranks, with one message per dtype.

    The arguments are those of `DistributedOptimizer`. With lists of variables as `groups`, each
    variable in no list is a message of its own.
    """

    op: int
    compression: Any
    sparse_as_dense: bool
    gradient_predivide_factor: float
    num_groups: int
    groups: int | Sequence | None
    process_set: ProcessSet
    scale_local_gradients: bool
    local: set = field(default_factory=set)
    variables: Sequence = ()  # of the update that an optimizer is in
    calls: int = 0

    def __post_init__(self):
        self.op = reduction(self.op)
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError(f"gradient_predivide_factor is for op Average, not {self.op}")
        n = self.groups = self.groups or self.num_groups or None
        if isinstance(n, bool) or not (n is None or isinstance(n, (int, list, tuple))):
            raise ValueError(f"groups must be a number or lists of variables, got {n!r}")

    @property
    def alone(self) -> bool:
        """Whether there is no other rank to reduce with."""
        return not self.process_set.included() or self.process_set.size() == 1

    def register_local(self, variable) -> None:
        self.local.add(key(variable))

    @tf.autograph.experimental.do_not_convert
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
                if self.scale_local_gradients:
                    out[i] = scaled(g, 1 / place(self.process_set)[1])
            else:
                shared.append(i)
                if self.sparse_as_dense and isinstance(g, tf.IndexedSlices):
                    out[i] = tf.convert_to_tensor(g)
        for group in self._groups(shared, variables):
            reduced = grouped_allreduce(
                [out[i] for i in group],
                op=self.op,
                compression=self.compression,
                prescale_factor=1.0 / self.gradient_predivide_factor,
                postscale_factor=self.gradient_predivide_factor,
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


def scaled(gradient, factor):
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def key(variable) -> int:
    """A key that is the same for a Keras variable and the TensorFlow variable in it."""
    # Keras's `value` may be a cast copy of it.
    return id(variable._value if isinstance(variable, keras.Variable) else variable)


def partial(make: Callable) -> Callable:
    """`make`, whose result leaves the gradients of Keras layers, `local_layers`, to each rank."""

    @functools.wraps(make)
    def made(*args, local_layers=None, **kwargs):
        one = isinstance(local_layers, keras.layers.Layer)
        layers = [local_layers] if one else list(local_layers or [])
        for layer in layers:
            if not isinstance(layer, keras.layers.Layer):
                raise TypeError(f"local_layers must be Keras layers, got a {type(layer).__name__}")
        new = make(*args, **kwargs)
        for layer in layers:
            for variable in layer.trainable_variables:
                new.register_local_var(variable)
        return new

    return made


class DistributedGradientTape:
    """Wraps a tape, within its `with` block or after it; `gradient` reduces over all ranks.

        with tf.GradientTape() as tape:
            loss = ...
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    Args:
        gradtape: A tf.GradientTape. For the other arguments see `DistributedOptimizer`.
    """

    @arguments(
        "self gradtape device_dense device_sparse compression sparse_as_dense op "
        "gradient_predivide_factor num_groups groups process_set scale_local_gradients"
    )
    def __init__(self, gradtape, **options):
        self._tape, self._reducer = gradtape, Reducer(**options)

    def __enter__(self):
        self._tape.__enter__()
        return self

    def __exit__(self, *error):
        return self._tape.__exit__(*error)

    def __getattr__(self, name):
        return getattr(self._tape, name)

    def register_local_source(self, source) -> None:
        """Keep each rank's own gradient of this variable, without reducing it."""
        self._reducer.register_local(source)

    register_local_var = register_local_source

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target, sources, output_gradients=None, use_generic_names=False, **options):
        """As tf.GradientTape.gradient, then reduced. `use_generic_names` has no effect."""
        gradients = self._tape.gradient(target, sources, output_gradients, **options)
        reduced = self._reducer.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)


PartialDistributedGradientTape = partial(DistributedGradientTape)
