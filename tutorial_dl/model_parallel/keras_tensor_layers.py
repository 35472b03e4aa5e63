"""The Keras layers that a rank has of a model that is cut by columns, rows and heads.

What they compute, and why: tensor.py. `Enter` is f of that page, `Leave` is g. Both are ops of
TensorFlow's graph that call the Team (replica/tensorflow_graph.py), one after the other in the
order of the program, forward and backward, so that all ranks do the same reductions.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.spans import SUMS, span, standing_in
from numba_kernels.team.team import Team
from tutorial_dl.replica.keras_steps import keras, tf
from tutorial_dl.replica.tensorflow_graph import in_order


class Sums:
    """Sums tensors over the ranks of `team`, and counts how often: `forward`, `backward`."""

    def __init__(self, team: Team) -> None:
        self.team, self.forward, self.backward = team, 0, 0
        self._kept: dict[np.dtype, np.ndarray] = {}

    def __call__(self, x: tf.Tensor, backward: bool) -> tf.Tensor:
        if self.team.size == 1:
            return tf.identity(x)
        if x.dtype in (tf.float16, tf.bfloat16):  # rounded once, not after each term
            return tf.cast(self(tf.cast(x, tf.float32), backward), x.dtype)

        def summed(arrays: list[np.ndarray]) -> list[np.ndarray]:
            if backward:
                self.backward += 1
            else:
                self.forward += 1
            mine = arrays[0]
            # In a graph, on a thread of TensorFlow's, for which the rank's own waits
            with standing_in(), span(SUMS[backward]):
                memory = self._memory(mine.size, mine.dtype)
                memory[:] = mine.reshape(-1)
                try:
                    return [self.team.allreduce(memory).reshape(mine.shape)]
                except Exception as error:
                    error._keras_call_info_injected = True  # else Keras makes a RuntimeError of it
                    raise

        # `short`: measured with sums of 8 KiB (0.06 ms in place of 0.12) and of 1 MiB (as fast)
        return in_order(summed, [x], [(x.dtype, x.shape)], "SumOverRanks", short=True)[0]

    def _memory(self, n: int, dtype: np.dtype) -> np.ndarray:
        """n elements in the window of the node, where a sum needs no copies; the same on all ranks.

        It grows to the largest that was asked for.
        """
        kept = self._kept.get(dtype)
        if kept is None or kept.size < n:
            kept = self._kept[dtype] = self.team.empty(n, dtype)
        return kept[:n]


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
        @tf.custom_gradient
        def leave(x):
            return self.sums(x, backward=False), tf.identity

        y = leave(x)
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


class PartOfDropout(Between):
    """Dropout of a part of the channels: this part of the masks of the whole layer."""

    def __init__(self, name: str, whole, team: Team, **options) -> None:
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
