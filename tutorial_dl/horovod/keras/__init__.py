"""The interface of horovod.keras: `import tutorial_dl.horovod.keras as hvd`."""

import keras as _keras

from ...interop.horovod import interface as _tensorflow
from ...interop.horovod.compression import Compression
from ...interop.horovod.gradients import trainable_in as _trainable_in
from ...interop.horovod.interface import *  # noqa: F403
from ...interop.horovod.process_sets import global_process_set
from ...interop.horovod.reductions import Average
from . import callbacks


def DistributedOptimizer(
    optimizer, name=None, device_dense="", device_sparse="", compression=Compression.none,
    sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1,
    average_aggregated_gradients=False, num_groups=0, groups=None, process_set=global_process_set,
    scale_local_gradients=True,
):  # fmt: skip
    """As `tutorial_dl.horovod.tensorflow.DistributedOptimizer`, with arguments in another order."""
    return _tensorflow.DistributedOptimizer(
        optimizer, name, False, device_dense, device_sparse, compression, sparse_as_dense,
        backward_passes_per_step, op, gradient_predivide_factor, average_aggregated_gradients,
        num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip


def PartialDistributedOptimizer(optimizer, *args, local_layers=None, **kwargs):
    """A DistributedOptimizer that leaves the gradients of `local_layers` to each rank."""
    new = DistributedOptimizer(optimizer, *args, **kwargs)
    for variable in _trainable_in(local_layers):
        new.register_local_var(variable)
    return new


def allreduce(
    value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None,
    compression=Compression.none, process_set=global_process_set,
):  # fmt: skip
    """Reduce `value`, anything that converts to a tensor, over all ranks."""
    return _tensorflow.allreduce(
        value, average, compression=compression, op=op, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, name=name, process_set=process_set,
    )  # fmt: skip


def reducescatter(
    value, name=None, op=Average, compression=Compression.none, prescale_factor=1.0,
    postscale_factor=1.0, process_set=global_process_set,
):  # fmt: skip
    """Reduce `value` over all ranks and return this rank's share of its rows."""
    return _tensorflow.reducescatter(
        value, compression=compression, op=op, name=name, process_set=process_set,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor,
    )  # fmt: skip


def load_model(
    filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none,
    legacy_opts=False, backward_passes_per_step=1, average_aggregated_gradients=False,
):  # fmt: skip
    """Load a saved model and make its optimizer, with its state, a DistributedOptimizer again.

    The file holds the settings of the Keras optimizer, but not those of the DistributedOptimizer,
    so give these again.

    Args:
        filepath: File of the model, ".keras" or ".h5"; every rank reads it.
        custom_optimizers: Your own optimizer classes that the model may need.
        custom_objects: {name: class or function} that the model may need.
        compression: See `DistributedOptimizer`.
        legacy_opts: Accepted, without effect.
        backward_passes_per_step, average_aggregated_gradients: See `DistributedOptimizer`. If left
            out, an optimizer that accumulates gradients averages them, as in Keras.

    Returns:
        The model.
    """
    objects = {c.__name__: c for c in custom_optimizers or []} | (custom_objects or {})
    model = _keras.saving.load_model(filepath, custom_objects=objects)
    if model.optimizer is not None:
        model.optimizer = DistributedOptimizer(
            model.optimizer,
            compression=compression,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
        )
        if model.compiled:
            model.jit_compile = model._resolve_auto_jit_compile()
    return model


__all__ = [*_tensorflow.__all__, "callbacks", "load_model"]
