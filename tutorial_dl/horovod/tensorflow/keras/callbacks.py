"""What horovod.tensorflow.keras.callbacks offers."""

from ....interop.horovod.callbacks import *  # noqa: F403
