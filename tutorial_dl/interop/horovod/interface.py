"""All names of horovod.tensorflow; scripts import them from `tutorial_dl.horovod.tensorflow`."""

from numba_kernels import launch
from tutorial_dl.tensorflow_chatter import quiet

# Each rank its share of the cores, if started by an mpiexec that does not say; TensorFlow looks
# when it first computes something.
if launch.under_mpi():
    launch.set_threads()
with quiet():
    import tensorflow as tf  # noqa: F401

from . import basics, collectives, elastic, objects
from .arguments import Compression
from .basics import *  # noqa: F403
from .collectives import *  # noqa: F403
from .gradients import DistributedGradientTape, PartialDistributedGradientTape
from .launching import run
from .objects import *  # noqa: F403
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer
from .sync_batch_norm import SyncBatchNormalization
from .wire import Adasum, Average, Max, Min, Product, Sum


def _op(number, words: str):
    def op(name=None):
        return collectives.as_op(number, name)

    op.__doc__ = f"{words} as a constant tensor."
    return op


rank_op = _op(basics.rank, "`rank()`")
local_rank_op = _op(basics.local_rank, "`local_rank()`")
local_size_op = _op(basics.local_size, "`local_size()`")


def size_op(process_set_id=0, name=None):
    """`size()` of a process set as a tensor."""
    return collectives.as_op(lambda: basics.process_set_by_id(process_set_id).size(), name)


def process_set_included_op(process_set_id=0, name=None):
    """1 if this rank is in the process set, else 0."""
    return collectives.as_op(lambda: basics.process_set_by_id(process_set_id).included(), name)


__all__ = [
    *basics.__all__, *collectives.__all__, *objects.__all__,
    "Adasum", "Average", "Compression", "DistributedGradientTape", "DistributedOptimizer",
    "Max", "Min", "PartialDistributedGradientTape", "PartialDistributedOptimizer",
    "Product", "Sum", "SyncBatchNormalization", "elastic", "local_rank_op", "local_size_op",
    "process_set_included_op", "rank_op", "run", "size_op",
]  # fmt: skip
