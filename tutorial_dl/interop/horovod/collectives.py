"""Collectives on tensors, with their gradients; eagerly and inside `tf.function`.

Gradients are those of Horovod, so a loss that contains a collective trains as it did there; first
derivatives only. With g the gradient of a rank's own loss with respect to its output of the
collective, the gradient with respect to its input is:

    allreduce       the same reduction of all g, with the same factors     (Sum, Average, Adasum)
                    sum of all g on the rank with the extreme, split ties  (Min, Max)
                    sum of all g, times the product of the others          (Product)
    allgather       this rank's rows of the mean of all g
    broadcast       the mean of all g on the root, zero elsewhere
    alltoall        the rows of g go back to where they came from
    reducescatter   all ranks' g one after the other; times the number of ranks for Sum

`name`: named calls are matched by name; ranks that give different names get a MismatchError.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tutorial_dl.replica.keras.collectives import in_order

from .arguments import arguments
from .basics import ProcessSet, global_process_set
from .wire import Adasum, Average, Product, Sum, reduction

__all__ = [
    "allgather", "allreduce", "alltoall", "barrier", "broadcast", "grouped_allgather",
    "grouped_allreduce", "grouped_reducescatter", "join", "reducescatter",
]  # fmt: skip


# Reductions


@arguments(
    "tensor average device_dense device_sparse compression op prescale_factor postscale_factor "
    "name process_set ignore_name_scope",
    op=None,
)
def allreduce(tensor, **options):
    """Reduce `tensor` over all ranks; shape and dtype must be the same on all ranks.

    Args:
        tensor: Tf.Tensor, tf.Variable, what can be converted, or tf.IndexedSlices, of which rows
            and indices are gathered (Sum and Average).
        average: Older form of `op`: True for Average, False for Sum.
        compression: The dtype in which it is sent, see `Compression`.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        prescale_factor, postscale_factor: Factors before and after the reduction.
        process_set: The ranks that take part.

    Returns:
        The reduced tensor, of the same shape and dtype.

    Raises:
        MismatchError: On all ranks, if shapes, dtypes, op or name differ.
        PeerError: If another rank failed.
    """
    return grouped_allreduce([tensor], **options)[0]


@arguments(
    "tensors average device_dense device_sparse compression op prescale_factor postscale_factor "
    "process_set ignore_name_scope name",
    op=None,
)
def grouped_allreduce(
    tensors, average, compression, op, prescale_factor, postscale_factor, process_set, name
) -> list:
    """`allreduce` of each tensor, with one message per dtype."""
    op = reduction(op, average)
    out: list = list(tensors)
    sparse = [i for i, t in enumerate(out) if isinstance(t, tf.IndexedSlices)]
    if sparse:
        factor = prescale_factor * postscale_factor
        reduced = _sparse([out[i] for i in sparse], op, factor, process_set, name)
        for i, slices in zip(sparse, reduced, strict=True):
            out[i] = slices
    dense = [i for i in range(len(out)) if i not in sparse]
    call = _Allreduce(name, process_set, op, prescale_factor, postscale_factor)
    reduced = _compressed(call, [out[i] for i in dense], compression)
    for i, tensor in zip(dense, reduced, strict=True):
        out[i] = tensor
    return out


def _compressed(call: _Allreduce, tensors: Sequence, compression) -> list:
    """The outputs of `call` on tensors that are sent compressed."""
    if not tensors:
        return []
    given = map(tf.convert_to_tensor, tensors)
    small, context = zip(*map(compression.compress, given), strict=True)
    outputs = zip(differentiable(call, small), context, strict=True)
    return [compression.decompress(output, c) for output, c in outputs]


class _Collective:
    """A collective, which is the Wire's method of its name, and its gradient."""

    more: Sequence[tf.Tensor] = ()  # inputs without a gradient

    def __init__(self, name, process_set, *settings):
        self.name, self.process_set, self.settings = name, process_set, settings

    def results(self, tensors):
        """The dtype and static shape of each result."""
        return [(t.dtype, t.shape) for t in tensors]

    def arguments(self) -> tuple:
        """The Wire's arguments after the arrays."""
        return self.settings

    def forward(self, *tensors):
        kind = type(self).__name__[1:]
        if any(t.dtype == tf.string for t in tensors):
            raise TypeError(
                f"hvd.{kind.lower()} takes numbers, got text: hvd.broadcast_object(obj, root_rank) "
                "and hvd.allgather_object(obj) send any object"
            )
        self.process_set.wire()  # raises here, not later in a graph, if this rank is not in it

        def call(arrays):
            # A graph may be older than the wire: elastic.run replaces it when a rank is lost.
            method = getattr(self.process_set.wire(), kind.lower())
            return method(arrays, *self.arguments(), name=self.name)

        return in_order(
            call, [*tensors, *self.more], self.results(tensors), f"Horovod{kind}"
        )  # fmt: skip

    def reduced(self, tensors, *settings):
        return _Allreduce(None, self.process_set, *settings).forward(*tensors)

    def gathered(self, *tensors):
        return _Allgather(None, self.process_set).forward(*tensors)


class _Allreduce(_Collective):
    def gradient(self, inputs, outputs, upstream):
        op, before, after = self.settings
        if op in (Sum, Average, Adasum):
            return self.reduced(upstream, op, before, after)
        total = self.reduced(upstream, Sum)
        scaled = [x * tf.cast(before, x.dtype) for x in inputs]
        after = [tf.cast(after, x.dtype) for x in inputs]
        if op == Product:
            everyone = self.gathered(*[x[tf.newaxis] for x in scaled])
            me, _ = place(self.process_set)
            others = [tf.concat([rows[:me], rows[me + 1 :]], axis=0) for rows in everyone]
            others = [tf.reduce_prod(rows, axis=0) for rows in others]
        else:
            mine = [
                tf.cast(x * a == y, x.dtype) for x, a, y in zip(scaled, after, outputs, strict=True)
            ]
            ties = self.reduced(mine, Sum)
            others = [m / tf.maximum(t, 1) for m, t in zip(mine, ties, strict=True)]
        factor = [a * tf.cast(before, a.dtype) for a in after]
        return [g * o * f for g, o, f in zip(total, others, factor, strict=True)]


def _sparse(slices: Sequence, op, factor: float, process_set, name) -> list[tf.IndexedSlices]:
    """Concatenate the IndexedSlices of all ranks; duplicate indices add up when applied."""
    if op not in (Sum, Average):
        raise NotImplementedError(
            f"op {op} of tf.IndexedSlices: only Sum and Average are defined; "
            "set sparse_as_dense=True to convert them to dense tensors"
        )
    ranks = tf.cast(place(process_set)[1] if op == Average else 1, tf.float64)
    name, where = name or "", {"process_set": process_set}
    values = grouped_allgather([s.values for s in slices], f"{name}.values", **where)
    indices = grouped_allgather([s.indices for s in slices], f"{name}.rows", **where)
    return [
        tf.IndexedSlices(v * tf.cast(factor / ranks, v.dtype), i, s.dense_shape)
        for v, i, s in zip(values, indices, slices, strict=True)
    ]


@arguments(
    "tensor device_dense compression op name process_set ignore_name_scope prescale_factor "
    "postscale_factor"
)
def reducescatter(tensor, **options):
    """Reduce `tensor` over all ranks and return this rank's share of its rows.

    Each of p ranks gets n // p of n rows, the first n % p ranks one more. See `allreduce`.
    """
    return grouped_reducescatter([tensor], **options)[0]


@arguments("tensors device_dense compression op process_set prescale_factor postscale_factor name")
def grouped_reducescatter(
    tensors, compression, op, process_set, prescale_factor, postscale_factor, name
) -> list:
    """`reducescatter` of each tensor, with one message per dtype."""
    settings = reduction(op), prescale_factor, postscale_factor
    call = _Reducescatter(name, process_set, *settings)
    return _compressed(call, tensors, compression)


class _Reducescatter(_Collective):
    def results(self, tensors):
        ranks, rank = self.process_set.size(), self.process_set.rank()

        def shape(t):
            if t.shape.rank is None or t.shape[:1] == [None]:
                return t.shape[:0] if t.shape.rank == 0 else tf.TensorShape(None)
            rows = t.shape[0] if t.shape else 0
            return [rows // ranks + (rank < rows % ranks), *t.shape[1:]]

        return [(t.dtype, shape(t)) for t in tensors]

    def gradient(self, inputs, outputs, upstream):
        op, before, after = self.settings
        if op not in (Sum, Average):
            raise LookupError(f"reducescatter with op {op} has no gradient")
        ranks = tf.cast(place(self.process_set)[1] if op == Sum else 1, tf.float64)
        factor = before * after * ranks
        return self.gathered(*[g * tf.cast(factor, g.dtype) for g in upstream])


# Rows from rank to rank


@arguments("tensor name ignore_name_scope process_set")
def allgather(tensor, **options):
    """The rows of all ranks, in the order of ranks. Only first dimensions may differ."""
    return grouped_allgather([tensor], **options)[0]


@arguments("tensors name ignore_name_scope process_set")
def grouped_allgather(tensors, name, process_set):
    """`allgather` of each tensor, in one call."""
    if not tensors:
        return []
    return differentiable(_Allgather(name, process_set), [tf.convert_to_tensor(t) for t in tensors])


class _Allgather(_Collective):
    def results(self, tensors):
        return [(t.dtype, any_rows(t)) for t in tensors]

    def gradient(self, inputs, outputs, upstream):
        mean = self.reduced(upstream, Average)
        rows = tf.stack([tf.shape(x)[0] for x in inputs])
        rows = self.gathered(rows[tf.newaxis])[0]  # (ranks, tensors)
        before = tf.reduce_sum(rows[: place(self.process_set)[0]], axis=0)
        return [g[before[k] : before[k] + tf.shape(x)[0]]
                for k, (g, x) in enumerate(zip(mean, inputs, strict=True))]  # fmt: skip


def any_rows(tensor) -> tf.TensorShape:
    """The tensor's static shape, with any number of rows."""
    return tf.TensorShape([None]).concatenate(tensor.shape[1:])


@arguments("tensor root_rank name ignore_name_scope process_set")
def broadcast(tensor, root_rank, name, process_set):
    """The value of `tensor` on rank `root_rank` (a rank of the job, also for a process set)."""
    process_set.place_of(root_rank)  # raises if it is not in the set
    call = _Broadcast(name, process_set, root_rank)
    return differentiable(call, [tf.convert_to_tensor(tensor)])[0]


class _Broadcast(_Collective):
    def arguments(self):
        return (self.process_set.place_of(self.settings[0]),)

    def gradient(self, inputs, outputs, upstream):
        mean = self.reduced(upstream, Average)
        at_root = as_op(lambda: self.process_set.rank() == self.arguments()[0])
        return [tf.where(at_root != 0, g, tf.zeros_like(g)) for g in mean]


@arguments("tensor splits name ignore_name_scope process_set", splits=None)
def alltoall(tensor, splits, name, process_set):
    """Send rows to all ranks: the first `splits[0]` to rank 0, and so on; by default equal shares.

    Returns:
        The received rows, in the order of ranks; with `splits`, also how many came from each rank.
    """
    call = _Alltoall(name, process_set)
    call.more = [] if splits is None else [tf.convert_to_tensor(splits)]
    rows, received = differentiable(call, [tf.convert_to_tensor(tensor)])
    return rows if splits is None else (rows, received)


class _Alltoall(_Collective):
    def results(self, tensors):
        return [(tensors[0].dtype, any_rows(tensors[0])), (tf.int32, [self.process_set.size()])]

    def gradient(self, inputs, outputs, upstream):
        return _Alltoall(None, self.process_set).forward(upstream[0], outputs[1])[:1]


def as_op(function, name: str | None = None) -> tf.Tensor:
    """The number that `function()` returns, int32; in a graph, whenever that runs."""
    if tf.executing_eagerly():
        return tf.constant(int(function()), tf.int32)
    number = tf.numpy_function(lambda: np.int32(function()), [], tf.int32, name=name)
    number.set_shape([])
    return number


def place(process_set: ProcessSet) -> tuple:
    """(This rank's number in the set, its number of ranks); tensors in a graph, where they vary."""
    if tf.executing_eagerly():
        return process_set.rank(), process_set.size()
    return as_op(process_set.rank), as_op(process_set.size)


def differentiable(call, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The outputs of `call.forward`, with `call.gradient` as their gradient."""

    @tf.custom_gradient
    def with_gradient(*inputs):
        outputs = call.forward(*inputs)

        @tf.autograph.experimental.do_not_convert
        def gradient(*upstream):
            # Some outputs may be unused, but every rank must take part in the collective with all.
            return call.gradient(inputs, outputs, upstream)

        return outputs, gradient

    return with_gradient(*tensors)


# Synchronisation


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    in_order(lambda _: process_set.wire().barrier() or [], [], [], "HorovodBarrier")


@tf.autograph.experimental.do_not_convert
def join() -> tf.Tensor:
    """Call it when this rank has no more data; it returns when all ranks have joined.

    Meanwhile the rank takes part in every `allreduce` (Sum or Average, over all ranks) with zeros;
    an average is still divided by the number of all ranks. Other collectives raise MismatchError on
    all ranks while some have joined.

    Returns:
        The last rank that joined, an int32 scalar.
    """
    return in_order(
        lambda _: [np.int32(global_process_set.wire().join())], [], [(tf.int32, [])], "HorovodJoin"
    )[0]
