"""What horovod.tensorflow.keras.callbacks offers."""

from ...callbacks import *  # noqa: F403
