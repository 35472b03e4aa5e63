"""The interface of horovod.tensorflow: `import tutorial_dl.horovod.tensorflow as hvd`."""

from numba_kernels import launch
from tutorial_dl.replica.quiet import hide_tensorflow_chatter

# Give each rank its share of the cores, unless mpiexec has set it. TensorFlow reads the number of
# threads when it first computes something.
if launch.under_mpi():
    launch.set_threads()
hide_tensorflow_chatter()

import tensorflow as tf  # noqa: E402

from .. import elastic  # noqa: E402
from ..basics import (  # noqa: E402
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from ..collectives import (  # noqa: E402
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from ..compression import Compression  # noqa: E402
from ..launching import run  # noqa: E402
from ..objects import (  # noqa: E402
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from ..optimizer import DistributedOptimizer, PartialDistributedOptimizer  # noqa: E402
from ..process_sets import ProcessSet, global_process_set, process_set_by_id  # noqa: E402
from ..reductions import Adasum, Average, Max, Min, Product, Sum  # noqa: E402
from ..sync_batch_norm import SyncBatchNormalization  # noqa: E402
from ..tape import DistributedGradientTape, PartialDistributedGradientTape  # noqa: E402


def size_op(process_set_id=0, name=None):
    """`size()` of a process set as a tensor."""
    return tf.constant(process_set_by_id(process_set_id).size(), tf.int32, name=name)


def rank_op(name=None):
    """`rank()` as a tensor."""
    return tf.constant(rank(), tf.int32, name=name)


def local_size_op(name=None):
    """`local_size()` as a tensor."""
    return tf.constant(local_size(), tf.int32, name=name)


def local_rank_op(name=None):
    """`local_rank()` as a tensor."""
    return tf.constant(local_rank(), tf.int32, name=name)


def process_set_included_op(process_set_id=0, name=None):
    """1 if this rank is in the process set, else 0."""
    return tf.constant(int(process_set_by_id(process_set_id).included()), tf.int32, name=name)


__all__ = [
    "Adasum", "Average", "Compression", "DistributedGradientTape", "DistributedOptimizer", "Max",
    "Min", "PartialDistributedGradientTape", "PartialDistributedOptimizer", "ProcessSet", "Product",
    "Sum", "SyncBatchNormalization", "add_process_set", "allgather", "allgather_object",
    "allreduce", "alltoall", "barrier",
    "broadcast", "broadcast_", "broadcast_global_variables", "broadcast_object",
    "broadcast_object_fn", "broadcast_variables", "ccl_built", "cross_rank", "cross_size",
    "cuda_built", "ddl_built", "elastic", "global_process_set", "gloo_built", "gloo_enabled",
    "grouped_allgather", "grouped_allreduce", "grouped_reducescatter", "init", "is_homogeneous",
    "is_initialized", "join", "local_rank", "local_rank_op", "local_size", "local_size_op",
    "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "process_set_included_op",
    "rank", "rank_op", "reducescatter", "remove_process_set", "rocm_built", "run", "shutdown",
    "size", "size_op", "start_timeline", "stop_timeline",
]  # fmt: skip
