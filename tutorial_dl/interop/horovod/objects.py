"""Broadcast and allgather of variables and Python objects."""

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from tutorial_dl.replica.keras.collectives import in_order

from .basics import ProcessSet, global_process_set
from .pickles import dumps, from_root, loads

__all__ = [
    "allgather_object", "broadcast_", "broadcast_global_variables", "broadcast_object",
    "broadcast_object_fn", "broadcast_variables",
]  # fmt: skip


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable, root_rank: int, process_set: ProcessSet = global_process_set, inplace=False
) -> None:
    """Set the variables (tf.Variable or keras.Variable) on all ranks to the values on `root_rank`.

    `inplace` is accepted and has no effect.
    """
    variables = list(variables)
    if not variables:
        return
    process_set.place_of(root_rank)  # raises if it is not in the set
    if process_set.wire().team.size == 1:
        return
    values = [tf.convert_to_tensor(v) for v in variables]
    came = in_order(
        lambda arrays: process_set.wire().broadcast(arrays, process_set.place_of(root_rank)),
        values, [(v.dtype, v.shape) for v in values], "HorovodBroadcastVariables",
    )  # fmt: skip
    for variable, value in zip(variables, came, strict=True):
        variable.assign(value)


def broadcast_(variables, root_rank, name=None, process_set=global_process_set) -> list:
    """Like `broadcast_variables`, and returns the new values."""
    variables = list(variables)
    broadcast_variables(variables, root_rank, process_set)
    return [tf.convert_to_tensor(v) for v in variables]


def broadcast_global_variables(root_rank: int) -> None:
    """Raises RuntimeError, as in Horovod: TensorFlow 2 has no list of all variables."""
    raise RuntimeError(
        "TensorFlow 2 keeps no list of all variables: use "
        "hvd.broadcast_variables(model.variables, root_rank), and the same for optimizer.variables"
    )


def broadcast_object(obj, root_rank=0, session=None, name=None, process_set=global_process_set):
    """Return rank `root_rank`'s `obj`: any object that can be pickled, functions included."""
    return from_root(obj, process_set.wire(), process_set.place_of(root_rank), name)


def broadcast_object_fn(
    root_rank=0, session=None, name=None, process_set=global_process_set
) -> Callable:
    """`broadcast_object` with this root, as a function of the object."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(obj, session=None, name=None, process_set=global_process_set) -> list:
    """The objects of all ranks, in the order of ranks."""
    data = dumps(obj)
    together, sizes = process_set.wire().allgather([data, np.array([data.size])], name)
    return [loads(one) for one in np.split(together, np.cumsum(sizes)[:-1])]
