"""The interface of horovod.tensorflow.keras.callbacks."""

from ....interop.horovod.callbacks import *  # noqa: F403
