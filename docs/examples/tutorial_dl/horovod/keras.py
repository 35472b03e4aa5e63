"""Examples of tutorial_dl.horovod, on one rank; docs/horovod.md has a script for many."""

# %% Which rank of how many
# shows: init, shutdown, is_initialized, rank, size, local_rank, local_size, cross_rank, cross_size
# shows: is_homogeneous, rank_op, size_op, local_rank_op, local_size_op, process_set_included_op
import tutorial_dl.horovod.keras as hvd

hvd.init()
print(hvd.is_initialized(), hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
print(hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous())
print(int(hvd.rank_op()), int(hvd.size_op()), int(hvd.local_rank_op()), int(hvd.local_size_op()))
print(int(hvd.process_set_included_op()))
hvd.shutdown()  # and it may begin again
hvd.init()

# %% What it was built with
# shows: mpi_built, mpi_enabled, mpi_threads_supported, gloo_built, gloo_enabled, nccl_built
# shows: cuda_built, rocm_built, ccl_built, ddl_built
import tutorial_dl.horovod.keras as hvd

print(hvd.mpi_built(), hvd.mpi_enabled(), hvd.mpi_threads_supported() in (True, False))
print(hvd.gloo_built(), hvd.gloo_enabled(), hvd.nccl_built(), hvd.cuda_built())
print(hvd.rocm_built(), hvd.ccl_built(), hvd.ddl_built())

# %% Collectives of tensors
# shows: allreduce, Sum, Average, Min, Max, Product, Adasum, grouped_allreduce, allgather
# shows: grouped_allgather, broadcast, alltoall, reducescatter, grouped_reducescatter, barrier, join
# shows: tutorial_dl.horovod.tensorflow.allreduce, tutorial_dl.horovod.tensorflow.reducescatter
import tensorflow as tf

import tutorial_dl.horovod.keras as hvd

x = tf.constant([1.0, 2.0])
for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
    print(hvd.allreduce(x, op=op).numpy(), end=" ")  # over one rank: itself
print([t.numpy() for t in hvd.grouped_allreduce([x, 2 * x])])
print(hvd.allgather(x).numpy(), hvd.grouped_allgather([x])[0].numpy(), hvd.broadcast(x, 0).numpy())
print(hvd.alltoall(x)[0].numpy(), hvd.reducescatter(x).numpy())
print(hvd.grouped_reducescatter([x])[0].numpy())
hvd.barrier()
print("the last rank to join was", int(hvd.join()))

# %% Objects and variables
# shows: broadcast_object, broadcast_object_fn, allgather_object, broadcast_variables, broadcast_
# shows: broadcast_global_variables
import tensorflow as tf

import tutorial_dl.horovod.keras as hvd

print(hvd.broadcast_object({"epoch": 3}, root_rank=0), hvd.allgather_object("mine"))
print(hvd.broadcast_object_fn(root_rank=0)([1, 2]))
v = tf.Variable([1.0])
hvd.broadcast_variables([v], root_rank=0)
hvd.broadcast_([v], root_rank=0)
try:
    hvd.broadcast_global_variables(0)  # of TensorFlow 1
except Exception as error:
    print(type(error).__name__, v.numpy())

# %% Groups of ranks
# shows: ProcessSet, add_process_set, remove_process_set, global_process_set
import tutorial_dl.horovod.keras as hvd

print(hvd.global_process_set.ranks, hvd.global_process_set.size())
some = hvd.ProcessSet([0])
for change in (hvd.add_process_set, hvd.remove_process_set):
    try:
        print(change(some))  # on one rank, [0] are all ranks
    except ValueError as error:
        print(error)

# %% Train a Keras model
# shows: DistributedOptimizer, PartialDistributedOptimizer, Compression, callbacks, load_model
# shows: SyncBatchNormalization, tutorial_dl.horovod.tensorflow.DistributedOptimizer
# shows: tutorial_dl.horovod.tensorflow.PartialDistributedOptimizer
import keras
import numpy as np

import tutorial_dl.horovod.keras as hvd

last = keras.layers.Dense(1)
model = keras.Sequential([keras.Input((2,)), hvd.SyncBatchNormalization(), last])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=hvd.Compression.fp16)
model.compile(optimizer, "mse")
x = np.random.default_rng(0).random((16, 2))
model.fit(
    x, x.sum(axis=1), verbose=0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
)  # fmt: skip
model.save("model.keras")
print(type(hvd.load_model("model.keras").optimizer).__name__)
part = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=[last])
print(type(part).__name__)  # gradients of `last` stay on each rank

# %% Gradients in a loop of one's own
# shows: DistributedGradientTape, PartialDistributedGradientTape
import tensorflow as tf

import tutorial_dl.horovod.keras as hvd

w = tf.Variable(3.0)
with tf.GradientTape() as tape:
    loss = w * w
print(hvd.DistributedGradientTape(tape).gradient(loss, [w])[0].numpy())
with tf.GradientTape() as tape:
    loss = w * w
print(hvd.PartialDistributedGradientTape(tape, local_layers=[]).gradient(loss, [w])[0].numpy())

# %% Timelines are written elsewhere
# shows: start_timeline, stop_timeline
import tutorial_dl.horovod.keras as hvd

for call in (lambda: hvd.start_timeline("t.json"), hvd.stop_timeline):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, str(error)[:70])

# %% What outlives a lost rank
# shows: elastic, tutorial_dl.interop.horovod.elastic.run, tutorial_dl.interop.horovod.elastic.State
# shows: tutorial_dl.interop.horovod.elastic.ObjectState
# shows: tutorial_dl.interop.horovod.elastic.HorovodInternalError
# shows: tutorial_dl.interop.horovod.elastic.HostsUpdatedInterrupt
import tutorial_dl.horovod.keras as hvd

state = hvd.elastic.ObjectState(epoch=0)  # a State


@hvd.elastic.run
def train(state):
    while state.epoch < 3:
        state.epoch += 1
        state.commit()
    return state.epoch


print(train(state), isinstance(state, hvd.elastic.State))
print(issubclass(hvd.elastic.HorovodInternalError, Exception))  # restores the last commit
print(issubclass(hvd.elastic.HostsUpdatedInterrupt, Exception))  # keeps the state as it is

# %% States of models
# shows: tutorial_dl.interop.horovod.elastic.KerasState
# shows: tutorial_dl.interop.horovod.elastic.TensorFlowKerasState
# shows: tutorial_dl.interop.horovod.elastic.TensorFlowState
# shows: tutorial_dl.interop.horovod.elastic.CommitStateCallback
# shows: tutorial_dl.interop.horovod.elastic.UpdateBatchStateCallback
# shows: tutorial_dl.interop.horovod.elastic.UpdateEpochStateCallback
import keras
import numpy as np
import tensorflow as tf

import tutorial_dl.horovod.keras as hvd

e = hvd.elastic
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
state = e.KerasState(model, batch=0, epoch=0)  # or TensorFlowKerasState
plain = e.TensorFlowState([tf.Variable(1.0)], step=0)
plain.commit()
model.fit(
    np.ones((8, 2)), np.ones(8), epochs=2, verbose=0,
    callbacks=[
        e.UpdateEpochStateCallback(state), e.UpdateBatchStateCallback(state),
        e.CommitStateCallback(state),
    ],
)  # fmt: skip
print(state.epoch, state.batch, plain.step, issubclass(e.KerasState, e.TensorFlowKerasState))
