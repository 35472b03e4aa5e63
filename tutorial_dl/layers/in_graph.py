"""A Team's allreduce inside TensorFlow's graphs: in one order on all ranks, and failing in words.

TensorFlow runs the operations of a graph in any order that their inputs allow. Two allreduces that
know nothing of each other could so run in one order here and in the other one there, and ranks
would wait for each other, or add up what does not belong together. A `tf.function` promises more of
operations that are declared stateful, and these are: they run in the order of the program that was
traced (automatic control dependencies), which all ranks share.
"""

from __future__ import annotations

import numpy as np

from tutorial_dl.replica.quiet import hide_tensorflow_chatter

hide_tensorflow_chatter()

import tensorflow as tf  # noqa: E402

_raised: list[BaseException] = []  # by a collective, on a thread of TensorFlow's


def allreduce(team, x: tf.Tensor) -> tf.Tensor:
    """The sum of `x` over all ranks; eager, or as part of the graph that is being traced.

    Args:
        team: Of whose ranks every one has to come here.
        x: float64, any shape, the same on all ranks.

    Where another rank fails meanwhile, eager code gets a PeerError (in a Keras layer: what Keras
    makes of it, in the same words). Out of a graph comes an error of TensorFlow's that has its
    words; `cause` has the PeerError itself.
    """

    if hasattr(team, "in_graph"):  # it has other collectives in the same graph, in one order
        return team.in_graph(x)

    def summed(mine: np.ndarray) -> np.ndarray:
        try:
            return team.allreduce(np.array(mine, np.float64))
        except BaseException as error:
            _raised[:] = [error]
            raise

    if tf.executing_eagerly():
        return tf.constant(team.allreduce(np.array(x, np.float64)))
    result = tf.numpy_function(summed, [x], tf.float64, stateful=True)
    result.set_shape(x.shape)
    return result


def cause(error: BaseException) -> BaseException:
    """What a collective raised, if that is why TensorFlow raised `error`; else `error` itself."""
    found, _raised[:] = list(_raised), []
    return found[0] if found and str(found[0]) in str(error) else error
