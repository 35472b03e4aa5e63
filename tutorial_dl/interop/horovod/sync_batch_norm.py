"""SyncBatchNormalization: batch normalisation over all ranks, with the signature of Horovod's."""

import keras

from tutorial_dl.interop.layers import sync_batch_normalization as layers

from .basics import ProcessSet, global_process_set
from .wire import Sum


class _Team:
    """A process set in place of the layer's team."""

    def __init__(self, process_set: ProcessSet):
        self.process_set = process_set

    @property
    def size(self) -> int:
        return self.process_set.size()

    def allreduce(self, x):
        return self.process_set.wire().allreduce([x], Sum)[0]


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
        super().__init__(_Team(process_set), average, **options)
