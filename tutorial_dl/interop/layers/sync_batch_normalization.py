"""Batch normalisation over the samples of all ranks, as if they were one batch on one rank.

Batch normalisation is the layer that uses more than one sample at a time:

    y = gamma (x - mean) / sqrt(variance + epsilon) + beta      mean, variance: of the batch

If a batch is divided among p ranks, each normalises by the statistics of its share: a different
function, worse as shares get smaller, so p ranks no longer compute what one process does. Here the
ranks sum what the statistics are made of. With n_r elements per channel on rank r, of mean m_r and
variance v_r,

    N = sum_r n_r     mean = sum_r n_r m_r / N     E[x^2] = sum_r n_r (v_r + m_r^2) / N
    variance = E[x^2] - mean^2

which takes one allreduce of three numbers per channel. They are float64, since E[x^2] and mean^2
may be much larger than their difference.

Backward: every rank's loss depends on mean and variance, and so on every rank's x. The loss of
the whole batch is L = sum_q w_q L_q, with w_q = s_q / sum s the ranks' shares of the samples. So

    dL/dx = A / N + B 2 (x - mean) / N,   A = sum_q w_q dL_q/dmean,   B = sum_q w_q dL_q/dvariance

which takes a second allreduce, of two numbers per channel. When gradients are averaged later, those
of this rank are multiplied by w_r, so they are divided by it here. The rest is what Keras does in
any batch normalisation.

Ioffe and Szegedy, arXiv 1502.03167; over ranks: Peng et al. (MegDet), arXiv 1711.07240
"""

from functools import cache

import numpy as np

from tutorial_dl.replica.keras.collective_layers import CollectiveLayer, has_samples
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf

from tutorial_dl.replica.keras.collectives import in_order

AVERAGES = ("samples", "ranks")


@keras.saving.register_keras_serializable("tutorial_dl")
class SyncBatchNormalization(CollectiveLayer, keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with the statistics of all ranks' samples, in training.

    Every rank of the team has to call it equally often; a rank without samples calls it on an empty
    batch, or within `without_samples`. Moving statistics are equal on all ranks. Outside training,
    or with `trainable = False`, nothing is exchanged. It does not work in code compiled by XLA.

    Args:
        team: The ranks that normalise together; None: those that train the model (outside of a
            Trainer, all ranks). The team is not saved: a loaded layer has none (in one process,
            that is plain batch normalisation).
        average: How gradients will be averaged over ranks: by "samples" (as the strategies do; p
            ranks then equal one process exactly) or by "ranks", each with the same weight.
        options: Arguments of `keras.layers.BatchNormalization`; masks work as there.
    """

    def __init__(self, team=None, average: str = "samples", **options):
        if average not in AVERAGES:
            raise ValueError(f"average must be {' or '.join(AVERAGES)}, got {average!r}")
        super().__init__(**options)
        self.synchronise(team, average)

    def synchronise(self, team, average: str) -> None:
        """Take `team` and `average`; for a layer that is made, or converted."""
        self.team, self.average = team, average
        self.supports_jit = False  # XLA can't call Python, in which the allreduce is written

    def get_config(self) -> dict:
        return {**super().get_config(), "average": self.average}

    def _moments(self, inputs, mask):
        """Mean and variance (channels,) of the whole batch, called by Keras's `call`."""
        axis = self.axis % len(inputs.shape)
        others = [i for i in range(len(inputs.shape)) if i != axis]
        counted = None
        if mask is not None:
            counted = tf.broadcast_to(tf.expand_dims(tf.cast(mask, bool), -1), tf.shape(inputs))
        team, empty = self.team or self.training_team or all_ranks(), not has_samples()
        return _moments(inputs, counted, axis, others, team, self.average, empty)


if not hasattr(keras.layers.BatchNormalization, "_moments"):  # nothing would be synchronised
    raise ImportError(f"Keras {keras.__version__}: its BatchNormalization has no _moments")


def convert(model: keras.Model, team=None, average: str = "samples") -> keras.Model:
    """Convert every BatchNormalization layer of `model`, nested ones too, to a synchronised one.

    The layers keep their weights, names and options, and the model stays compiled; only the way
    they compute statistics changes, also in any other model that shares them. Call this on all
    ranks, before the model is given to a Trainer or a Replica.

    Args:
        model: Functional, Sequential or subclassed; it is changed in place.
        team, average: See `SyncBatchNormalization`.

    Returns:
        The same `model`.

    Raises:
        ValueError: If a layer's class is derived from BatchNormalization; no layer is changed then.
    """
    if average not in AVERAGES:
        raise ValueError(f"average must be {' or '.join(AVERAGES)}, got {average!r}")
    plain = keras.layers.BatchNormalization
    # Keras's private name: `layers` has no layers of layers.
    found = [layer for layer in model._flatten_layers() if isinstance(layer, plain)]
    for layer in found:
        if type(layer) not in (plain, SyncBatchNormalization):
            raise ValueError(
                f"layer '{layer.name}' is a {type(layer).__name__}, a subclass that can't be "
                "converted: derive it from tutorial_dl.layers.SyncBatchNormalization instead"
            )
    for layer in found:
        # No new layer, because a subclassed model would keep calling the old one.
        layer.__class__ = SyncBatchNormalization
        layer.synchronise(team, average)
    model.train_function = None  # it was traced with the layers as they were
    return model


@cache
def all_ranks():
    """The team of all ranks of the run. The first call is collective."""
    from numba_kernels.team.team import Team

    return Team()


def _moments(x, counted, axis: int, others: list[int], team, average: str, empty: bool):
    """(mean, variance), each (channels,), over all ranks, with gradients to x (see above).

    `counted`: which elements of x count, in the shape of x (None: all); if `empty`, none do.
    """

    def in_shape(of_channels):
        return tf.reshape(of_channels, [-1 if i == axis else 1 for i in range(len(x.shape))])

    def summed(arrays):
        return [team.allreduce(np.array(arrays[0], np.float64))]

    def reduced(sums):  # float64
        if team.size == 1:
            return sums
        results = [(tf.float64, sums.shape)]
        return in_order(summed, [sums], results, "SyncBatchNormalization", all_teams=False)[0]

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
            # A rank without samples computed on placeholder data, where this may even be NaN.
            mine = tf.where(samples > 0, weight * mine, 0)
            both = tf.math.divide_no_nan(reduced(mine), weight)
            both = tf.math.divide_no_nan(both, tf.tile(total, [2]))
            a, b = (in_shape(tf.cast(part, x.dtype)) for part in tf.split(both, 2))
            g = a + 2 * b * (x - in_shape(tf.cast(mean, x.dtype)))
            return g if counted is None else tf.where(counted, g, 0)

        return (tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)), backward

    return moments(x)


def _own(x, counted, others, channels, in_shape):
    """Count, mean and variance per channel of this rank's x, float64 (channels,); 0 if empty."""
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
