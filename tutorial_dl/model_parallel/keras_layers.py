"""The Keras layers of a rank's part of a model: where ranks meet, and what computes a part.

What they compute, and why: tensor.py and context.py. Where ranks meet are ops of TensorFlow's graph
that call the Team (replica/keras/collectives.py), one after the other in the order of the program,
forward and backward, so that all ranks do the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tutorial_dl.model_parallel.context import RingAttention, Saved
from tutorial_dl.model_parallel.keras_sums import Sums, on_the_team
from tutorial_dl.replica.keras.collectives import in_order
from tutorial_dl.replica.keras.graphs import keras, tf


class Between(keras.layers.Layer):
    """Base class of layers that compute each position by itself."""

    by_position = makes_no_mask = True

    def __init__(self, name: str, **options) -> None:
        super().__init__(name=name, **options)
        self.supports_masking = True
        self.supports_jit = False

    def compute_output_shape(self, shape):
        return shape


class Exchange(Between):
    """Where a tensor gets another form, and its gradient the reverse (see `Sums`).

                                forward     backward
        f                       same        sum             before layers that are cut
        g                       sum         same            behind them
        f, from parts           gather      sum_part        in the sequence-parallel form
        g, to parts             sum_part    gather
        divide                  take        gather
        join                    gather      take

    Args:
        length: The positions of the whole sequence, for all but the first two.
    """

    def __init__(
        self, name: str, sums: Sums, forward: str, backward: str, length: int = 0, **options
    ) -> None:
        super().__init__(name, **options)
        self.sums, self.length, self.forward, self.backward = sums, length, forward, backward

    def compute_output_shape(self, shape):
        if self.forward in ("same", "sum"):
            return shape
        size = self.length
        if self.forward != "gather":
            size = len(self.sums.places(size).kept_by(self.sums.team.rank))
        return (shape[0], size, *shape[2:])

    def compute_output_spec(self, x):  # tokens stay integers
        return keras.KerasTensor(self.compute_output_shape(x.shape), x.dtype)

    def call(self, x):
        if not x.dtype.is_floating:
            return self.sums.move(self.forward, x, None)

        @tf.custom_gradient
        def exchange(x):
            shape = x.shape
            y = self.sums.move(self.forward, x, self.compute_output_shape(shape))
            return y, lambda g: self.sums.move(self.backward, g, shape, backward=True)

        return exchange(x)


class Leave(Exchange):
    """g, then the bias, and then the activation.

    Args:
        size: Of the bias; None: there is none.
        length: The positions of the sequence, of which each rank gets a part; 0: all get all.
    """

    def __init__(
        self, name: str, sums: Sums, size: int | None, activation=None, length: int = 0, **options
    ) -> None:
        how = ("sum_part", "gather") if length else ("sum", "same")
        super().__init__(name, sums, *how, length, **options)
        self.size, self.bias = size, None
        self.activation = keras.activations.get(activation)

    def build(self, shape):
        if self.size is not None:
            self.bias = self.add_weight(name="bias", shape=(self.size,), initializer="zeros")

    def compute_output_spec(self, x):
        return keras.KerasTensor(self.compute_output_shape(x.shape), self.compute_dtype)

    def call(self, x):
        y = super().call(x)
        return self.activation(y if self.bias is None else keras.ops.add(y, self.bias))


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


class TakePart(Between):
    """This rank's positions of what all ranks have whole, (s, t, ...)."""

    def __init__(self, name: str, mine: Sequence[int], **options) -> None:
        super().__init__(name, **options)
        self.mine = mine

    def compute_output_shape(self, shape):
        return (shape[0], len(self.mine), *shape[2:])

    def call(self, x):
        return tf.gather(x, self.mine, axis=1)


class PartOfDropout(Between):
    """Dropout of a part of a tensor: this part of the masks of the whole.

    Args:
        whole: The Dropout.
        axis: Of positions (1) or channels (-1), of which there are `length` in all.
        mine: The numbers of this rank's.
    """

    def __init__(self, name: str, whole, axis: int, length: int, mine: Sequence[int]) -> None:
        super().__init__(name, dtype=whole.dtype_policy)
        self.whole, self.axis, self.length, self.mine = whole, axis, length, mine
        self.stands_for = whole.name

    rate = property(lambda self: self.whole.rate)

    def call(self, x, training=False):
        if not training or not self.rate:
            return x
        axis = self.axis % len(x.shape)
        static = [*x.shape[:axis], self.length, *x.shape[axis + 1 :]]
        shape = tf.shape(x)
        ones = tf.ones(tf.concat([shape[:axis], [self.length], shape[axis + 1 :]], 0), x.dtype)
        ones.set_shape(static)
        return x * tf.gather(self.whole(ones, training=True), self.mine, axis=axis)


class RingHeads(Between):
    """A MultiHeadAttention whose queries, keys and values lie on the ranks of a ring.

    It uses the weights of `layer`, and its dense layers, which compute each position by itself.
    """

    def __init__(self, name: str, layer, ring: RingAttention) -> None:
        super().__init__(name, dtype=layer.dtype_policy)
        self.layer, self.ring, self.stands_for = layer, ring, layer.name
        self.built = True

    def compute_output_spec(self, query, value, key=None):
        shape = self.layer.compute_output_shape(query.shape, value.shape)
        return keras.KerasTensor(shape, self.compute_dtype)

    def call(self, query, value, key=None):
        layer, key = self.layer, value if key is None else key
        maps = zip(
            (layer.query_dense, layer.key_dense, layer.value_dense),
            (query, key, value),
            strict=True,
        )
        # From (s, t / C, heads, width) to (s, heads, t / C, width), and back
        q, k, v = (tf.transpose(dense(x), (0, 2, 1, 3)) for dense, x in maps)
        if q.dtype == tf.float64:  # Keras (3.15) multiplies scores by a root of float32
            root = np.sqrt(float(layer.key_dim))
            q *= tf.constant(np.float32(1 / root) * root, tf.float64)
        return layer.output_dense(tf.transpose(attend(self.ring, q, k, v), (0, 2, 1, 3)))


def attend(ring: RingAttention, q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """The output of the ring for q, k, v (s, h, t / C, d), with its gradient."""

    def forward(arrays: list[np.ndarray]) -> list[np.ndarray]:
        with on_the_team():
            y, kept = ring.forward(*arrays)
        return [y, kept.logarithm]

    def backward(arrays: list[np.ndarray]) -> list[np.ndarray]:
        dy, q, k, v, y, logarithm = arrays
        with on_the_team():
            return list(ring.backward(dy, Saved(q, np.stack([k, v]), y, logarithm)))

    @tf.custom_gradient
    def function(q, k, v):
        one = (q.dtype, (*q.shape[:-1], 1))
        y, logarithm = in_order(forward, [q, k, v], [(q.dtype, q.shape), one], "RingAttention")

        def gradient(dy):
            like = [(x.dtype, x.shape) for x in (q, k, v)]
            given = [dy, q, k, v, y, logarithm]
            return in_order(backward, given, like, "GradientOfRingAttention")

        return y, gradient

    return function(q, k, v)
