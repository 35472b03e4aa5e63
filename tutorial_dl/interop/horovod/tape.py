"""DistributedGradientTape: a tf.GradientTape that reduces gradients over all ranks."""

from __future__ import annotations

import tensorflow as tf

from .compression import Compression
from .gradients import Reducer, trainable_in
from .process_sets import global_process_set
from .reductions import Average


class DistributedGradientTape:
    """Wraps a tape, within its `with` block or after it; `gradient` reduces over all ranks.

        with tf.GradientTape() as tape:
            loss = ...
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    Args:
        gradtape: A tf.GradientTape. For the other arguments see `DistributedOptimizer`.
    """

    def __init__(
        self, gradtape, device_dense="", device_sparse="", compression=Compression.none,
        sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None,
        process_set=global_process_set, scale_local_gradients=True,
    ):  # fmt: skip
        self._tape = gradtape
        self._reducer = Reducer(
            op, compression, sparse_as_dense, gradient_predivide_factor,
            groups or num_groups or None, process_set, scale_local_gradients,
        )  # fmt: skip

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

    def gradient(self, target, sources, output_gradients=None, use_generic_names=False, **options):
        """As tf.GradientTape.gradient, then reduced. `use_generic_names` has no effect."""
        gradients = self._tape.gradient(target, sources, output_gradients, **options)
        reduced = self._reducer.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)


def PartialDistributedGradientTape(
    gradtape, *args, local_layers=None, **kwargs
) -> DistributedGradientTape:
    """A DistributedGradientTape that leaves the gradients of `local_layers` to each rank."""
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    for variable in trainable_in(local_layers):
        tape.register_local_source(variable)
    return tape
