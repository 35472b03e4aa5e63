"""What horovod.keras.callbacks offers."""

from ..callbacks import *  # noqa: F403
