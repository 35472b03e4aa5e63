"""Batch normalisation over the samples of all ranks, with the constructor of Horovod's layer."""

from __future__ import annotations

import keras

from tutorial_dl import layers

from .graph import in_order
from .process_sets import ProcessSet, global_process_set
from .reductions import Sum


class _InOrder:
    """A process set as the team of the layer: its calls keep the order of all collectives."""

    def __init__(self, process_set: ProcessSet):
        self.process_set = process_set

    @property
    def size(self) -> int:
        return self.process_set.size()

    def in_graph(self, x):
        wire = self.process_set.wire()
        return in_order(
            lambda arrays: wire.allreduce(arrays, Sum), [x], [(x.dtype, x.shape)], "SyncBatchNorm"
        )[0]


@keras.saving.register_keras_serializable("tutorial_dl.horovod")
class SyncBatchNormalization(layers.SyncBatchNormalization):
    """`keras.layers.BatchNormalization` whose statistics, in training, are those of all ranks.

    Its gradients fit a DistributedOptimizer, in which ranks count alike: with as many samples on
    each rank, training is that of one process with the whole batch.

    Args:
        process_set: The ranks; it is not saved (what is loaded has that of all ranks).
        others: Those of `keras.layers.BatchNormalization`.
    """

    def __init__(self, process_set: ProcessSet = global_process_set, average="ranks", **options):
        super().__init__(_InOrder(process_set), average, **options)
