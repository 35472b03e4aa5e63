"""As horovod.tensorflow.keras: `import tutorial_dl.horovod.tensorflow.keras as hvd`."""

from ...keras import *  # noqa: F403
from ...keras import __all__, callbacks  # noqa: F401
