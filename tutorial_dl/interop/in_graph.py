"""A Team's allreduce inside TensorFlow's graphs: same order on all ranks, errors with their cause.

TensorFlow runs the operations of a graph in any order that their inputs allow. Two independent
allreduces could therefore run in different orders on different ranks; the ranks would deadlock, or
add up tensors that don't belong together. A `tf.function` guarantees more for operations that are
declared stateful, as these are: they run in the order of the traced program (automatic control
dependencies), which is the same on all ranks.
"""

from __future__ import annotations

import numpy as np

from tutorial_dl.replica.collective_layers import remember
from tutorial_dl.tensorflow_chatter import hide_tensorflow_chatter

hide_tensorflow_chatter()

import tensorflow as tf  # noqa: E402


def allreduce(team, x: tf.Tensor) -> tf.Tensor:
    """The sum of `x` over all ranks; eager, or as part of the graph that is being traced.

    Args:
        team: The team; each of its ranks has to make this call.
        x: float64, any shape, the same on all ranks.

    Raises:
        PeerError: If another rank fails meanwhile. In a Keras layer or a graph, Keras or TensorFlow
            raises an error of its own with the same text; `collective_layers.cause` then returns
            the PeerError.
    """

    if hasattr(team, "in_graph"):  # the team orders all its collectives in a graph itself
        return team.in_graph(x)

    def summed(mine: np.ndarray) -> np.ndarray:
        try:
            return team.allreduce(np.array(mine, np.float64))
        except BaseException as error:
            remember(error)
            raise

    if tf.executing_eagerly():
        return tf.constant(team.allreduce(np.array(x, np.float64)))
    result = tf.numpy_function(summed, [x], tf.float64, stateful=True)
    result.set_shape(x.shape)
    return result
