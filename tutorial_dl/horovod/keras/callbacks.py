"""The interface of horovod.keras.callbacks."""

from ...interop.horovod.callbacks import *  # noqa: F403
