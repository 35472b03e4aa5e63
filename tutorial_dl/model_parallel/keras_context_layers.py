"""The Keras layers that a rank computes with if it has a part of each sequence.

`RingHeads` is Keras's MultiHeadAttention with the ring of context.py between its dense layers, as
an op of TensorFlow's graph that calls the Team (replica/keras/collectives.py).
"""

from __future__ import annotations

import numpy as np

from numba_kernels.spans import standing_in
from tutorial_dl.model_parallel.context import RingAttention, Saved
from tutorial_dl.model_parallel.keras_tensor_layers import Between
from tutorial_dl.model_parallel.sequences import Sequences
from tutorial_dl.replica.keras.collectives import in_order
from tutorial_dl.replica.keras.graphs import keras, tf


class TakePart(Between):
    """This rank's positions of what all ranks have whole, (s, t, ...)."""

    def __init__(self, name: str, sequences: Sequences, **options) -> None:
        super().__init__(name, **options)
        self.mine = sequences.mine

    def compute_output_shape(self, shape):
        return (shape[0], len(self.mine), *shape[2:])

    def call(self, x):
        return tf.gather(x, self.mine, axis=1)


class DropoutOfPart(Between):
    """Dropout with this rank's part of the masks of whole sequences."""

    def __init__(self, name: str, whole, sequences: Sequences, **options) -> None:
        super().__init__(name, **options)
        self.whole, self.length = whole, sequences.positions.length
        self.stands_for = whole.name
        self.mine = sequences.mine

    def call(self, x, training=False):
        if not training or not self.whole.rate:
            return x
        shape = tf.shape(x)
        ones = tf.ones(tf.concat([shape[:1], [self.length], shape[2:]], 0), x.dtype)
        ones.set_shape((None, self.length, *x.shape[2:]))
        return x * tf.gather(self.whole(ones, training=True), self.mine, axis=1)


class RingHeads(Between):
    """A MultiHeadAttention whose queries, keys and values lie on the ranks of a ring.

    It uses the weights of `layer`, and its dense layers, which compute each position by itself.
    """

    def __init__(self, name: str, layer, ring: RingAttention, **options) -> None:
        super().__init__(name, **options)
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
        # In a graph, on a thread of TensorFlow's, for which the rank's own waits
        with standing_in(), said_as_it_is():
            y, kept = ring.forward(*arrays)
        return [y, kept.logarithm]

    def backward(arrays: list[np.ndarray]) -> list[np.ndarray]:
        dy, q, k, v, y, logarithm = arrays
        with standing_in(), said_as_it_is():
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


class said_as_it_is:
    """Within, Keras makes no RuntimeError of an error."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, trace) -> None:
        if isinstance(error, Exception):
            error._keras_call_info_injected = True
