"""The interface of horovod.keras.callbacks."""

from ..callbacks import *  # noqa: F403
