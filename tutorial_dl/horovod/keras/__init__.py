"""The interface of horovod.keras: `import tutorial_dl.horovod.keras as hvd`."""

import keras as _keras

from ...interop.horovod import interface as _tensorflow
from ...interop.horovod.arguments import arguments as _arguments
from ...interop.horovod.gradients import partial as _partial
from ...interop.horovod.interface import *  # noqa: F403
from . import callbacks

# The functions of horovod.tensorflow, with arguments in another order.

DistributedOptimizer = _arguments(
    "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients num_groups "
    "groups process_set scale_local_gradients"
)(_tensorflow.DistributedOptimizer)
PartialDistributedOptimizer = _partial(DistributedOptimizer)


@_arguments(
    "value name average prescale_factor postscale_factor op compression process_set", op=None
)
def allreduce(value, **options):
    """Reduce `value`, anything that converts to a tensor, over all ranks."""
    return _tensorflow.allreduce(value, **options)


@_arguments("value name op compression prescale_factor postscale_factor process_set")
def reducescatter(value, **options):
    """Reduce `value` over all ranks and return this rank's share of its rows."""
    return _tensorflow.reducescatter(value, **options)


@_arguments(
    "filepath custom_optimizers custom_objects compression legacy_opts backward_passes_per_step "
    "average_aggregated_gradients",
    custom_optimizers=None,
    custom_objects=None,
)
def load_model(filepath, custom_optimizers, custom_objects, **options):
    """Load a saved model and make its optimizer, with its state, a DistributedOptimizer again.

    The file holds the settings of the Keras optimizer, but not those of the DistributedOptimizer,
    so give these again.

    Args:
        filepath: File of the model, ".keras" or ".h5". All ranks may read it, or rank 0 alone, if
            its state is then broadcast.
        custom_optimizers: Your own optimizer classes that the model may need.
        custom_objects: {name: class or function} that the model may need.
        compression: See `DistributedOptimizer`.
        backward_passes_per_step, average_aggregated_gradients: See `DistributedOptimizer`. If left
            out, an optimizer that accumulates gradients averages them, as in Keras.

    Returns:
        The model.
    """
    objects = {c.__name__: c for c in custom_optimizers or []} | (custom_objects or {})
    model = _keras.saving.load_model(filepath, custom_objects=objects)
    if str(filepath).endswith((".h5", ".hdf5")):
        _restore(model, filepath)
    if model.optimizer is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, **options)
        if model.compiled:
            model.jit_compile = model._resolve_auto_jit_compile()
    return model


def _restore(model, file) -> None:
    """Give the optimizer its state from an .h5 file.

    Keras 3 builds it for the variables that the model itself owns, which are none (its layers own
    them), so it would begin anew, and ranks that have loaded the file would have fewer variables
    than others.
    """
    optimizer, weights = model.optimizer, model.trainable_variables
    if optimizer is None or getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables:
        return
    import h5py

    with h5py.File(file) as content:
        group = content.get("optimizer_weights")
        names = [] if group is None else group.attrs["weight_names"]
        values = [group[name.decode() if isinstance(name, bytes) else name][()] for name in names]
    whole = type(optimizer).from_config(optimizer.get_config())
    whole.build(weights)
    if len(values) == len(whole.variables):
        whole.set_weights(values)
    model.optimizer = whole


__all__ = [*_tensorflow.__all__, "callbacks", "load_model"]
