"""The interface of horovod.tensorflow: `import tutorial_dl.horovod.tensorflow as hvd`."""

from ...interop.horovod.interface import *  # noqa: F403
from ...interop.horovod.interface import __all__  # noqa: F401
