"""DistributedOptimizer: a Keras optimizer that reduces gradients over all ranks (DDP).

In Keras 3 every update passes through `optimizer.apply`, from `model.fit`, from `apply_gradients`,
and within a LossScaleOptimizer. There gradients are unscaled, accumulated, clipped and used, and
the ranks must reduce them before clipping:

    apply -> unscale -> accumulate k times -> REDUCE -> clip -> weight decay -> update

so that clipping by norm uses the gradient of all ranks, and an update of k accumulated batches
costs one allreduce. The hook is the method `_clip_gradients`, which is replaced in the instance;
class and configuration stay those of the optimizer, so a saved model loads anywhere.

Two functions of Keras are changed as well (`_hook_keras`): with dynamic loss scaling, all ranks
skip a step if one has an overflow, or they would deadlock; and XLA, which can't send messages
between processes, is not chosen for such a model.
"""

import functools

import keras
import tensorflow as tf

from tutorial_dl.replica.keras.collectives import refuse_xla

from .arguments import arguments
from .collectives import allreduce
from .gradients import Reducer, partial
from .wire import Sum


@arguments(
    "optimizer name use_locking device_dense device_sparse compression sparse_as_dense "
    "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients num_groups "
    "groups process_set scale_local_gradients"
)
def DistributedOptimizer(
    optimizer, name, backward_passes_per_step, average_aggregated_gradients, **options
):
    """Copy `optimizer`; the copy reduces gradients over all ranks before it uses them.

    Args:
        optimizer: A Keras 3 optimizer. Its state, if it has one, is copied.
        name: Name of the new optimizer; by default that of `optimizer`.
        compression: The dtype in which gradients are sent, see `Compression`.
        sparse_as_dense: Reduce gradients of embeddings as dense tensors.
        backward_passes_per_step: Sum gradients over this many calls, then reduce and update. An
            optimizer with equal gradient_accumulation_steps is accepted; it then sums gradients
            instead of averaging them.
        op: Average (each rank has the same weight, whatever its number of samples), or another op.
        gradient_predivide_factor: With Average, divide by it before the sum and multiply after it.
        average_aggregated_gradients: Divide the sum by `backward_passes_per_step`.
        groups, num_groups: Number of messages for all gradients; or lists of variables, one message
            per list.
        process_set: The ranks that reduce; other ranks use their own gradients only.
        scale_local_gradients: Divide the gradients of local variables (`register_local_var`) by the
            number of ranks.

    Returns:
        An optimizer of the same class.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"expected a Keras 3 optimizer, got a {type(optimizer).__name__}")
    if backward_passes_per_step < 1:
        raise ValueError(
            f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}"
        )
    reducer, passes = Reducer(**options), backward_passes_per_step
    # Keras averages what it accumulates.
    factor = 1.0 if average_aggregated_gradients or passes == 1 else float(passes)
    _hook_keras()
    return _distributed(optimizer, name, reducer, passes, factor)


PartialDistributedOptimizer = partial(DistributedOptimizer)


def _distributed(optimizer, name, reducer: Reducer, passes: int, factor: float):
    inner = getattr(optimizer, "inner_optimizer", None)
    if getattr(inner if inner is not None else optimizer, "horovod", None) is not None:
        raise ValueError(f"{optimizer.name} is already a DistributedOptimizer")
    config = optimizer.get_config() | ({"name": name} if name else {})
    if inner is None and passes > 1:
        steps = config.get("gradient_accumulation_steps")
        if steps and steps != passes:
            raise ValueError(
                f"the optimizer has gradient_accumulation_steps {steps}, so "
                f"backward_passes_per_step must be {steps} or left out, got {passes}"
            )
        config["gradient_accumulation_steps"] = passes
    new = type(optimizer).from_config(config)
    if inner is not None:  # a LossScaleOptimizer: its inner optimizer updates
        new.inner_optimizer = _distributed(inner, None, reducer, passes, factor)
        new.register_local_var = reducer.register_local
    else:
        _reduce_before_clipping(new, reducer, factor)
    if optimizer.built:
        _copy_state(optimizer, new)
    return new


def _reduce_before_clipping(new, reducer: Reducer, factor: float) -> None:
    apply, clip = new._backend_apply_gradients, new._clip_gradients

    def _backend_apply_gradients(gradients, variables):
        if not reducer.alone and not tf.executing_eagerly():
            refuse_xla("a DistributedOptimizer")
        reducer.variables, before = variables, reducer.calls
        apply(gradients, variables)
        if reducer.calls == before and not new.gradient_accumulation_steps:
            raise RuntimeError(
                f"Keras {keras.__version__} no longer calls _clip_gradients, where a "
                "DistributedOptimizer reduces gradients; without it, each rank would train alone"
            )

    def _clip_gradients(gradients):
        reduced = reducer.reduce(gradients, reducer.variables)
        if factor != 1.0:
            reduced = [g if g is None else g * tf.cast(factor, g.dtype) for g in reduced]
        return clip(reduced)

    new.horovod = reducer
    new.register_local_var = reducer.register_local
    new._backend_apply_gradients = _backend_apply_gradients
    new._clip_gradients = _clip_gradients


def _copy_state(old, new) -> None:
    inner, old_inner = (getattr(o, "inner_optimizer", o) for o in (new, old))
    new.build(old_inner._trainable_variables)
    steps = 1 if old_inner.gradient_accumulation_steps else inner.gradient_accumulation_steps or 1
    added = {id(v) for v in inner._accumulated_gradients} if steps > 1 else set()
    kept = [v for v in new.variables if id(v) not in added]
    for target, v in zip(kept, old.variables, strict=True):
        target.assign(v)
    # With accumulation, Keras counts passes here; without it, updates.
    inner._iterations.assign(inner._iterations * steps)


def reducer_of(optimizer) -> Reducer | None:
    """The Reducer of a DistributedOptimizer, also inside a LossScaleOptimizer; else None."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return getattr(optimizer if inner is None else inner, "horovod", None)


@functools.cache
def _hook_keras() -> None:
    scale = keras.optimizers.LossScaleOptimizer
    finite_here, resolve = scale.check_finite, keras.Model._resolve_auto_jit_compile

    def check_finite(self, gradients):
        finite, reducer = finite_here(self, gradients), reducer_of(self)
        if reducer is None or reducer.alone:
            return finite
        # A sum, because ranks that have joined contribute zero.
        overflows = allreduce(
            1 - tf.cast(finite, tf.int32), op=Sum, process_set=reducer.process_set
        )
        return tf.equal(overflows, 0)

    def resolve_auto_jit_compile(self):
        reducer = reducer_of(getattr(self, "optimizer", None))
        return False if reducer is not None and not reducer.alone else resolve(self)

    scale.check_finite = check_finite
    keras.Model._resolve_auto_jit_compile = resolve_auto_jit_compile
