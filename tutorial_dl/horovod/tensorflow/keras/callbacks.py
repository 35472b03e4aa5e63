"""The interface of horovod.tensorflow.keras.callbacks."""

from ...callbacks import *  # noqa: F403
