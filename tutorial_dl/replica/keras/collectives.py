"""Collectives as TensorFlow ops: in program order on every rank, errors with their cause.

Ranks wait for each other in a collective, so two ranks must never be in different ones. In eager
mode they follow the order of the program. Inside `tf.function`, TensorFlow runs ops that are ready
on several threads, and two ranks may choose different orders. So every collective of a graph is
given the same resource, a variable that is never read: TensorFlow runs ops that use the same
resource one after the other, in program order, through branches, loops and nested functions.

    a = allreduce(x)            order --> PyFunc (x)
    b = model(...)                          |
    c = allreduce(y)                     PyFunc (y)      after the first, though y was ready

This can't deadlock: the k-th collective waits only for its own inputs, which depend on earlier
collectives, and for the k - 1 before it. So if all ranks trace the same program, the k-th can
always begin once those are done. Ranks whose programs differ get a MismatchError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
import tensorflow as tf

from numba_kernels.errors import MismatchError, TeamError
from numba_kernels.shared.window import aligned
from tutorial_dl.replica.keras.collective_layers import remember

LARGE = 1 << 18  # bytes
SHAREABLE = "fdil"  # dtype characters that can be shared through DLPack
MOST_KEPT = 8

_order: tf.Variable | None = None
_kept: list[_Block] = []


def in_order(
    function: Callable[[list[np.ndarray]], list[np.ndarray]],
    tensors: Sequence[tf.Tensor],
    results: Sequence[tuple],
    name: str,
    all_teams: bool = True,
    short: bool = False,
) -> list[tf.Tensor]:
    """Apply `function` to the tensors as numpy arrays, now or as an op of the graph being built.

    `function` must not change its arrays. Its results, of which `results` has (dtype, static
    shape), are copied, so it may overwrite them later. An error that a graph meets later is raised
    by TensorFlow as an OpError; `collective_layers.cause` returns the TeamError. It is a failure
    for all teams of this process; without `all_teams`, only for the team that raises it. `short`:
    the call is quick although sizes are not known before, so that its own cost matters most.
    """
    if tf.executing_eagerly():
        return as_tensors(function([as_array(t) for t in tensors]))
    refuse_xla(name)

    types = [dtype for dtype, _ in results]
    kinds = [*((t.dtype, t.shape) for t in tensors), *results]
    sizes = [tf.TensorShape(shape).num_elements() for _, shape in kinds]
    plain = all(np.dtype(tf.as_dtype(t).as_numpy_dtype).char in SHAREABLE for t, _ in kinds)
    small = plain and (short or (None not in sizes and 8 * sum(sizes) < LARGE))

    @tf.autograph.experimental.do_not_convert
    def call(_, *given):
        try:
            if small:
                return [np.array(a) for a in function([np.asarray(a) for a in given])]
            return as_tensors(function([as_array(t) for t in given]))
        except BaseException as error:
            # TensorFlow turns it into an error of its own; the other ranks must see this one.
            from numba_kernels.team import failure, short_traceback  # starts MPI

            remember(error)
            team_failed = isinstance(error, TeamError)
            short_traceback.met[:] = [copy(error)] if team_failed else []
            if all_teams and not isinstance(error, MismatchError):  # all ranks raise that
                failure.abort_all(error)
            if team_failed and not short_traceback.asked():
                raise error.with_traceback(None) from None  # TensorFlow logs it twice
            raise

    with tf.device("/cpu:0"):
        # numpy_function costs 60 µs and copies more, py_function 150 µs.
        as_op = tf.numpy_function if small else tf.py_function
        outputs = as_op(call, [_resource(), *tensors], types, name=name)
    for output, (_, shape) in zip(outputs, results, strict=True):
        output.set_shape(shape)
    return outputs


def as_array(tensor: tf.Tensor) -> np.ndarray:
    """The values of an eager tensor, without a copy if possible."""
    try:
        return np.asarray(memoryview(tensor))
    except (ValueError, TypeError, BufferError):  # bfloat16, or not in main memory
        return tensor.numpy()


def as_tensors(arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
    """Copies of the arrays, as tensors.

    Large arrays use memory that is reused once TensorFlow has dropped the tensors: fresh memory
    from the operating system for every step's gradients would cost more than the copy.
    """
    if sum(a.nbytes for a in arrays) < LARGE or any(a.dtype.char not in SHAREABLE for a in arrays):
        return [tf.constant(a) for a in arrays]
    ends = np.cumsum([-(-a.nbytes // 64) * 64 for a in arrays]).tolist()
    memory, tensors = _take(ends[-1]), []
    for a, first in zip(arrays, [0, *ends], strict=False):
        view = memory[first : first + a.nbytes].view(a.dtype).reshape(a.shape)
        np.copyto(view, a)
        tensors.append(tf.experimental.dlpack.from_dlpack(view.__dlpack__()))
    return tensors


class _Block:
    """64-byte aligned memory that is lent to tensors."""

    def __init__(self, nbytes: int):
        self.memory = aligned(nbytes, np.uint8)
        self.unused = self.references()

    def references(self) -> int:
        return sys.getrefcount(self.memory.base)  # views of `memory` all refer to this


def _take(nbytes: int) -> np.ndarray:
    """`nbytes` of 64-byte aligned memory that no tensor uses."""
    for block in _kept:
        if block.memory.nbytes == nbytes and block.references() == block.unused:
            return block.memory
    if len(_kept) >= MOST_KEPT:
        _kept.pop(0)  # its memory goes when its tensors do
    _kept.append(_Block(nbytes))
    return _kept[-1].memory


def _resource() -> tf.Tensor:
    """The handle of the variable that orders the collectives of a graph."""
    global _order
    if _order is None:
        with tf.init_scope(), tf.device("/cpu:0"):
            _order = tf.Variable(0, trainable=False, dtype=tf.int64, name="order_of_collectives")
    return _order.handle


def refuse_xla(name: str) -> None:
    """Raise ValueError if XLA compiles this graph: it has no ops that message other processes."""
    from tensorflow.python.ops import control_flow_util

    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            f"{name} can't be compiled by XLA: remove jit_compile=True or set jit_compile=False"
        )
