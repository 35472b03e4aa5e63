"""What horovod.keras.callbacks offers."""

from ...interop.horovod.callbacks import *  # noqa: F403
