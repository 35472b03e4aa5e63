"""Random numbers under XLA: Keras draws there what it draws in a graph.

XLA makes the same random bits as TensorFlow does on a CPU, but makes floating-point numbers of
other bits of them. So while a function for XLA is traced, Keras's draws are replaced by the ones
below, which follow TensorFlow's random_distributions.h. Dropout then has the same masks, however
the gradient is computed.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf

OTHERS = ("categorical", "randint", "truncated_normal", "shuffle", "gamma", "binomial", "beta")
PHILOX = 1


class DrawsDiffer(NotImplementedError):
    """A model draws random numbers that XLA would draw differently."""


@contextmanager
def same_draws(strict: bool) -> Iterator[None]:
    """Within, functions that are traced for XLA draw what graphs draw.

    Draws that are neither uniform nor normal nor float32 raise DrawsDiffer, or are left as they are
    if not `strict`.
    """
    module = keras.src.backend.random
    with ExitStack() as stack:
        for name, function in {"uniform": _uniform, "normal": _normal, "dropout": _dropout}.items():
            instead = _for_float32(function, getattr(module, name), strict)
            stack.enter_context(mock.patch.object(module, name, instead))
        for name in OTHERS if strict else ():
            stack.enter_context(mock.patch.object(module, name, _differs))
        yield


def _differs(*_: Any, **__: Any) -> None:
    raise DrawsDiffer("random numbers other than uniform and normal ones in float32")


def _for_float32(ours: Callable, keras_own: Callable, strict: bool) -> Callable:
    def draw(*arguments: Any, **options: Any) -> tf.Tensor:
        given = inspect.signature(ours).bind(*arguments, **options).arguments
        dtype = given["inputs"].dtype if "inputs" in given else given.get("dtype")
        if keras.backend.standardize_dtype(dtype or keras.config.floatx()) == "float32":
            return ours(*arguments, **options)
        return (_differs if strict else keras_own)(*arguments, **options)

    return draw


def _bits(shape: Any, seed: Any) -> tf.Tensor:
    """Random uint32 of this shape, for a Keras seed; the same by XLA and on a CPU."""
    seed = keras.src.random.seed_generator.draw_seed(seed)
    if seed.dtype != tf.int32:  # as Keras does
        seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=PHILOX, dtype=tf.uint32
    )


def _unit(bits: tf.Tensor) -> tf.Tensor:
    """uint32 -> float32 in [0, 1): the lowest 23 bits are those of the fraction."""
    fraction = tf.bitwise.bitwise_and(bits, tf.constant(0x7FFFFF, tf.uint32))
    return tf.bitcast(fraction + tf.constant(0x3F800000, tf.uint32), tf.float32) - 1.0


def _uniform(
    shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
) -> tf.Tensor:
    return _unit(_bits(shape, seed)) * (maxval - minval) + minval


def _normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> tf.Tensor:
    """Box and Muller's method: two numbers from two, the sine first."""
    n = tf.reduce_prod(shape)
    pairs = tf.reshape(_unit(_bits([(n + 1) // 2 * 2], seed)), [-1, 2])
    length = tf.sqrt(-2.0 * tf.math.log(tf.maximum(pairs[:, 0], 1e-7)))
    angle = 2.0 * math.pi * pairs[:, 1]
    both = tf.stack([tf.sin(angle) * length, tf.cos(angle) * length], 1)
    return tf.reshape(tf.reshape(both, [-1])[:n], shape) * stddev + mean


def _dropout(inputs: tf.Tensor, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
    if rate in (0.0, 1.0):
        return inputs if rate == 0.0 else tf.zeros_like(inputs)
    here = tf.shape(inputs)
    given = [None] * len(inputs.shape) if noise_shape is None else noise_shape
    shape = [here[i] if size is None else size for i, size in enumerate(given)]
    return tf.where(_unit(_bits(shape, seed)) >= rate, inputs * (1 / (1 - rate)), 0.0)
