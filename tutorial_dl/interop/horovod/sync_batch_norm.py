"""SyncBatchNormalization: batch normalisation over all ranks, with the signature of Horovod's."""

from __future__ import annotations

import keras

from tutorial_dl.interop.layers import sync_batch_normalization as layers

from ..ordered_graph import in_order
from .process_sets import ProcessSet, global_process_set
from .reductions import Sum


class _InOrder:
    """A process set in place of the layer's team; its calls keep the order of all collectives."""

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
    """`keras.layers.BatchNormalization` with the statistics of all ranks during training.

    Its gradients fit a DistributedOptimizer, which weights ranks equally: with equally many samples
    on each rank, training equals that of one process with the whole batch.

    Args:
        process_set: The ranks. It is not saved; a loaded layer uses all ranks.
        average: How gradients will be averaged, see `tutorial_dl.layers.SyncBatchNormalization`.
        options: Arguments of `keras.layers.BatchNormalization`.
    """

    def __init__(self, process_set: ProcessSet = global_process_set, average="ranks", **options):
        super().__init__(_InOrder(process_set), average, **options)
