"""The Keras layers that a rank has of a model that is cut by columns, rows and heads.

What they compute, and why: tensor.py. `Enter` is f of that page, `Leave` is g; in the
sequence-parallel form, `EnterFromPart` and `LeaveInParts` are. All are ops of TensorFlow's graph
that call the Team (replica/tensorflow_graph.py), one after the other in the order of the program,
forward and backward, so that all ranks do the same reductions.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.spans import SUMS, span, standing_in
from numba_kernels.team.collectives import Collectives
from tutorial_dl.model_parallel.reductions import Reductions
from tutorial_dl.replica.keras_steps import keras, tf
from tutorial_dl.replica.tensorflow_graph import in_order


class Sums:
    """Sums tensors over the ranks of `team`, and counts.

    Attributes:
        forward, backward: How many sums there were so far, in either pass.
        gathers: How many allgathers, which only parts of sequences need.
        reductions: What sends; `sent` are its bytes so far.
    """

    def __init__(self, team: Collectives) -> None:
        self.team, self.reductions = team, Reductions(team)
        self.forward = self.backward = self.gathers = 0

    sent = property(lambda self: self.reductions.sent)

    def __call__(self, x: tf.Tensor, backward: bool) -> tf.Tensor:
        """The sum of all ranks' x."""
        return self._over_ranks(self.reductions.summed, x, x.shape, backward)

    def part(self, x: tf.Tensor, shape, backward: bool) -> tf.Tensor:
        """This rank's part, of this static shape, of the sum of all ranks' x (s, t, ...)."""
        return self._over_ranks(self.reductions.summed_part, x, shape, backward)

    def gathered(self, x: tf.Tensor, shape, backward: bool) -> tf.Tensor:
        """All ranks' parts of sequences, joined, of this static shape (s, t, ...)."""

        def joined(x: np.ndarray) -> np.ndarray:
            return self.reductions.gathered(x, shape[1])

        return self._over_ranks(joined, x, shape, backward, sums=False)

    def _over_ranks(self, reduce, x, shape, backward: bool, sums: bool = True) -> tf.Tensor:
        if self.team.size == 1:
            return tf.identity(x)
        if x.dtype in (tf.float16, tf.bfloat16):  # rounded once, not after each term
            single = tf.cast(x, tf.float32)
            return tf.cast(self._over_ranks(reduce, single, shape, backward, sums), x.dtype)

        def reduced(arrays: list[np.ndarray]) -> list[np.ndarray]:
            self.gathers += not sums
            self.forward += sums and not backward
            self.backward += sums and backward
            # In a graph, on a thread of TensorFlow's, for which the rank's own waits
            with standing_in(), span(SUMS[backward]):
                try:
                    return [reduce(arrays[0])]
                except Exception as error:
                    error._keras_call_info_injected = True  # else Keras makes a RuntimeError of it
                    raise

        # `short`: measured with sums of 8 KiB (0.06 ms in place of 0.12) and of 1 MiB (as fast)
        name = "SumOverRanks" if sums else "GatherOverRanks"
        return in_order(reduced, [x], [(x.dtype, shape)], name, short=True)[0]


class Between(keras.layers.Layer):
    """Base class of layers that keep the shape of what they are given."""

    makes_no_mask = True

    def __init__(self, name: str, **options) -> None:
        super().__init__(name=name, **options)
        self.supports_masking = True
        self.supports_jit = False

    def compute_output_shape(self, shape):
        return shape


class Enter(Between):
    """f: the same x on all ranks; backward, the sum of what each rank's part makes of it."""

    by_position = True

    def __init__(self, name: str, sums: Sums, **options) -> None:
        super().__init__(name, **options)
        self.sums = sums

    def call(self, x):
        @tf.custom_gradient
        def enter(x):
            return tf.identity(x), lambda g: self.sums(g, backward=True)

        return enter(x)


class EnterFromPart(Enter):
    """f of a part of each sequence: all parts, joined; backward, this part of the ranks' sum."""

    def __init__(self, name: str, sums: Sums, length: int, **options) -> None:
        super().__init__(name, sums, **options)
        self.length = length

    def compute_output_shape(self, shape):
        return (shape[0], self.length, *shape[2:])

    def call(self, x):
        @tf.custom_gradient
        def enter(x):
            part, whole = x.shape, self.compute_output_shape(x.shape)
            y = self.sums.gathered(x, whole, backward=False)
            return y, lambda g: self.sums.part(g, part, backward=True)

        return enter(x)


class Leave(Between):
    """g: the sum of all ranks' terms, plus the bias, and then the activation.

    Args:
        size: Of the bias; None: there is none.
    """

    by_position = True

    def __init__(self, name: str, sums: Sums, size: int | None, activation=None, **options) -> None:
        super().__init__(name, **options)
        self.sums, self.size = sums, size
        self.activation = keras.activations.get(activation)

    def build(self, shape):
        self.bias = None
        if self.size is not None:
            self.bias = self.add_weight(name="bias", shape=(self.size,), initializer="zeros")

    def call(self, x):
        y = self.summed(x)
        return self.activation(y if self.bias is None else keras.ops.add(y, self.bias))

    def summed(self, x):
        @tf.custom_gradient
        def leave(x):
            return self.sums(x, backward=False), tf.identity

        return leave(x)


class LeaveInParts(Leave):
    """g that gives this rank's part of each sequence; backward, all parts of the gradient."""

    def __init__(self, name: str, sums: Sums, length: int, *arguments, **options) -> None:
        super().__init__(name, sums, *arguments, **options)
        self.places = sums.reductions.places(length)

    def compute_output_shape(self, shape):
        return (shape[0], len(self.places.of(self.sums.team.rank)), *shape[2:])

    def summed(self, x):
        @tf.custom_gradient
        def leave(x):
            part = self.compute_output_shape(x.shape)
            whole = (x.shape[0], self.places.length, *x.shape[2:])
            y = self.sums.part(x, part, backward=False)
            return y, lambda g: self.sums.gathered(g, whole, backward=True)

        return leave(x)


class Divide(Between):
    """This rank's part of sequences (s, t, ...) that all ranks have; backward, all parts."""

    def __init__(self, name: str, sums: Sums, length: int, **options) -> None:
        super().__init__(name, **options)
        self.sums, self.length = sums, length
        edges = sums.reductions.places(length).edges
        self.first, self.last = edges[sums.team.rank : sums.team.rank + 2]

    def compute_output_shape(self, shape):
        return (shape[0], self.last - self.first, *shape[2:])

    def compute_output_spec(self, x):
        return keras.KerasTensor(self.compute_output_shape(x.shape), x.dtype)

    def call(self, x):
        if not x.dtype.is_floating:
            return x[:, self.first : self.last]

        @tf.custom_gradient
        def take(x):
            y, whole = x[:, self.first : self.last], x.shape
            return y, lambda g: self.sums.gathered(g, whole, backward=True)

        return take(x)


class Join(Divide):
    """All parts, joined, of sequences of which each rank has a part; backward, this part.

    What takes the result is the same on all ranks, and so is its gradient.
    """

    def compute_output_shape(self, shape):
        return (shape[0], self.length, *shape[2:])

    def call(self, x):
        @tf.custom_gradient
        def join(x):
            y = self.sums.gathered(x, self.compute_output_shape(x.shape), backward=False)
            return y, lambda g: g[:, self.first : self.last]

        return join(x)


class Heads(keras.layers.MultiHeadAttention):
    """Some of the heads of an attention; `Leave` adds the bias of its output."""

    makes_no_mask = True

    def _make_output_dense(self, *arguments, **options):
        dense = super()._make_output_dense(*arguments, **options)
        dense.bias_axes = None  # before it is built
        return dense


if not hasattr(keras.layers.MultiHeadAttention, "_make_output_dense"):  # the bias would count twice
    raise ImportError(f"Keras {keras.__version__}: MultiHeadAttention has no _make_output_dense")


class Rows(keras.layers.Layer):
    """This rank's rows of an embedding's table: 0 for numbers whose row another rank has."""

    by_position = makes_no_mask = True

    def __init__(self, name: str, first: int, rows: int, tokens: int, width: int, **options):
        super().__init__(name=name, **options)
        self.first, self.rows, self.tokens, self.width = first, rows, tokens, width

    def build(self, shape):
        self.table = self.add_weight(
            name="embeddings", shape=(self.rows, self.width), initializer="zeros"
        )

    def compute_output_shape(self, shape):
        return (*shape, self.width)

    def call(self, x):
        x = tf.cast(x, tf.int32)
        # A row that no rank has is an error, as in Keras on a processor.
        known = tf.debugging.Assert(
            tf.reduce_all((x >= 0) & (x < self.tokens)),
            [f"layer '{self.name}' has {self.tokens} rows, asked for", x],
        )
        with tf.control_dependencies([known] if known is not None else []):
            x = x - self.first
        mine = (x >= 0) & (x < self.rows)
        y = tf.gather(tf.convert_to_tensor(self.table), tf.where(mine, x, 0))
        return y * tf.cast(mine, y.dtype)[..., None]


class PartOfDropout(Between):
    """Dropout of a part of the channels: this part of the masks of the whole layer."""

    def __init__(self, name: str, whole, team: Collectives, **options) -> None:
        super().__init__(name, **options)
        self.whole, self.team = whole, team

    rate = property(lambda self: self.whole.rate)

    def call(self, x, training=False):
        if not training or not self.rate:
            return x
        shape, n = tf.shape(x), x.shape[-1]
        ones = tf.ones(tf.concat([shape[:-1], [n * self.team.size]], 0), x.dtype)
        mask = self.whole(ones, training=True)
        return x * mask[..., self.team.rank * n : (self.team.rank + 1) * n]
