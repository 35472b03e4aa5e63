"""Batch normalisation over the samples of all ranks, as if they were one batch on one rank.

Batch normalisation is the layer that looks at more than one sample at a time:

    y = gamma (x - mean) / sqrt(variance + epsilon) + beta      mean, variance: of the batch

Cut a batch among p ranks, and each normalises by the statistics of its share: another function,
worse as shares get smaller, and p ranks no longer do what one process does. Here ranks add up what
the statistics are made of. With n_r elements a channel on rank r, of mean m_r and variance v_r,

    N = sum_r n_r     mean = sum_r n_r m_r / N     E[x^2] = sum_r n_r (v_r + m_r^2) / N
    variance = E[x^2] - mean^2

one allreduce of three numbers a channel. They are in float64, since E[x^2] and mean^2 may be much
larger than their difference.

Backwards: every rank's loss depends on mean and variance, and so on every rank's x. The loss of
the whole batch is L = sum_q w_q L_q, with w_q = s_q / sum s the ranks' shares of the samples. So

    dL/dx = A / N + B 2 (x - mean) / N,   A = sum_q w_q dL_q/dmean,   B = sum_q w_q dL_q/dvariance

a second allreduce, of two numbers a channel. Whoever averages gradients will multiply those of this
rank by w_r: they are divided by it here. The rest is what Keras does in any batch normalisation.

Ioffe and Szegedy, arXiv 1502.03167; over ranks: Peng et al. (MegDet), arXiv 1711.07240
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tutorial_dl.layers.in_graph import allreduce
from tutorial_dl.replica.quiet import hide_tensorflow_chatter

hide_tensorflow_chatter()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

AVERAGES = ("samples", "ranks")

_here = threading.local()
_world: list = []  # the team of all ranks, once a layer without a team of its own has needed it


@contextmanager
def without_samples() -> Iterator[None]:
    """What is computed (or traced) meanwhile is no part of the batch: this rank has no samples.

    It has to take part in the allreduces all the same, or the other ranks would wait for ever. So
    it computes on something of no weight.
    """
    _here.empty = True
    try:
        yield
    finally:
        _here.empty = False


@keras.saving.register_keras_serializable("tutorial_dl")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with the statistics of all ranks' samples, in training.

    Every rank of the team has to call it equally often; a rank without samples does so on a batch
    of none, or within `without_samples`. Moving statistics are equal on all ranks. Outside of
    training, or with `trainable = False`, nothing is exchanged. It works eagerly, in a
    `tf.function` and in `model.fit`, but not in code that XLA compiles.

    Args:
        team: Whose ranks normalise together; None is all ranks of the run. It is not saved: what is
            loaded has the team of all ranks (one process: it is plain batch normalisation).
        average: How gradients will be averaged over ranks, by "samples" (as the strategies do, p
            ranks then equal one process exactly) or by "ranks", each the same weight.
        others: Those of `keras.layers.BatchNormalization`; masks work as there.
    """

    def __init__(self, team=None, average: str = "samples", **options):
        if average not in AVERAGES:
            raise ValueError(f"average {average!r}: expected {' or '.join(AVERAGES)}")
        super().__init__(**options)
        self._synchronise(team, average)

    def _synchronise(self, team, average: str) -> None:
        self.team, self.average = team, average
        self.supports_jit = False  # XLA can't call Python, which the allreduce is

    def get_config(self) -> dict:
        return {**super().get_config(), "average": self.average}

    def _moments(self, inputs, mask):
        """Mean and variance (channels,) of the whole batch: what Keras's `call` asks for."""
        axis = self.axis % len(inputs.shape)
        others = [i for i in range(len(inputs.shape)) if i != axis]
        if mask is None:
            counted = None
        else:
            counted = tf.broadcast_to(tf.expand_dims(tf.cast(mask, bool), -1), tf.shape(inputs))
        team = self.team or all_ranks()
        empty = getattr(_here, "empty", False)
        return _moments(inputs, counted, axis, others, team, self.average, empty)


if not hasattr(keras.layers.BatchNormalization, "_moments"):  # nothing would be synchronised
    raise ImportError(f"Keras {keras.__version__}: its BatchNormalization has no _moments")


def convert(model: keras.Model, team=None, average: str = "samples") -> keras.Model:
    """Make every BatchNormalization layer of `model`, nested ones too, a synchronised one.

    The layers stay what they are, with their weights, names and options, in a model that stays
    compiled, and in any other model that uses them: only how they compute statistics changes. So do
    this before the model is given to a Trainer or a Replica, and on all ranks.

    Args:
        model: Functional, Sequential or subclassed; it is changed.
        team, average: See `SyncBatchNormalization`.

    Returns `model`.

    Raises ValueError for a layer of a class derived from BatchNormalization, before any is changed.
    """
    if average not in AVERAGES:
        raise ValueError(f"average {average!r}: expected {' or '.join(AVERAGES)}")
    plain = keras.layers.BatchNormalization
    found = [layer for layer in model._flatten_layers() if isinstance(layer, plain)]
    for layer in found:
        if type(layer) not in (plain, SyncBatchNormalization):
            raise ValueError(
                f"layer '{layer.name}' is a {type(layer).__name__}, which computes in a way of its "
                "own: derive it from tutorial_dl.layers.SyncBatchNormalization instead"
            )
    for layer in found:
        # Not a new layer: a subclassed model would go on calling the old one.
        layer.__class__ = SyncBatchNormalization
        layer._synchronise(team, average)
    model.train_function = None  # traced with the layers as they were
    return model


def all_ranks():
    """The team of all ranks of the run. Collective when it is first asked for."""
    if not _world:
        from numba_kernels.team import Team

        _world.append(Team())
    return _world[0]


def _moments(x, counted, axis: int, others: list[int], team, average: str, empty: bool):
    """(mean, variance), each (channels,), over all ranks, with gradients to x (see above).

    counted: which elements of x are to be counted, in the shape of x; None: all
    empty: none of them, and this rank has no samples
    """

    def in_shape(of_channels):
        return tf.reshape(of_channels, [-1 if i == axis else 1 for i in range(len(x.shape))])

    def reduced(sums):  # float64
        return allreduce(team, sums) if team.size > 1 else sums

    @tf.custom_gradient
    def moments(x):
        channels, samples = tf.shape(x)[axis], tf.cast(tf.shape(x)[0], tf.float64)
        n, own_mean, own_variance = _own(x, counted, others, channels, in_shape)
        if empty:
            n, samples = tf.zeros_like(n), tf.zeros_like(samples)
        squares = own_variance + own_mean**2
        sums = tf.concat([n, n * own_mean, n * squares, [samples]], 0)  # (3 channels + 1,)
        sums = reduced(sums)
        total, all_samples = sums[:channels], sums[-1]
        mean = tf.math.divide_no_nan(sums[channels : 2 * channels], total)
        squares = tf.math.divide_no_nan(sums[2 * channels : -1], total)
        variance = tf.maximum(squares - mean**2, 0)
        by_samples = tf.math.divide_no_nan(samples, all_samples)
        weight = by_samples if average == "samples" else tf.constant(1 / team.size, tf.float64)

        def backward(of_mean, of_variance):
            mine = tf.cast(tf.concat([of_mean, of_variance], 0), tf.float64)
            # A rank without samples computed on something of no weight, which may even be NaN.
            mine = tf.where(samples > 0, weight * mine, 0)
            both = tf.math.divide_no_nan(reduced(mine), weight)
            both = tf.math.divide_no_nan(both, tf.tile(total, [2]))
            a, b = (in_shape(tf.cast(part, x.dtype)) for part in tf.split(both, 2))
            g = a + 2 * b * (x - in_shape(tf.cast(mean, x.dtype)))
            return g if counted is None else tf.where(counted, g, 0)

        return (tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)), backward

    return moments(x)


def _own(x, counted, others, channels, in_shape):
    """Elements, mean and variance a channel of this rank's x, float64 (channels,); 0 of none."""
    if counted is None:
        n = tf.reduce_prod(tf.gather(tf.shape(x), others))
        n = tf.fill([channels], tf.cast(n, tf.float64))
        mean, variance = tf.nn.moments(x, others)
    else:
        n = tf.reduce_sum(tf.cast(counted, x.dtype), others)
        mean = tf.reduce_sum(tf.where(counted, x, 0), others) / n
        squares = tf.where(counted, tf.square(x - in_shape(mean)), 0)
        variance = tf.reduce_sum(squares, others) / n
    n, mean, variance = (tf.cast(part, tf.float64) for part in (n, mean, variance))
    return n, tf.where(n > 0, mean, 0), tf.where(n > 0, variance, 0)
