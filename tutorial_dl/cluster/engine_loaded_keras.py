"""engine_loaded.py and TensorFlow, for engines whose cells will import it (foreseen.py)."""

from ..tensorflow_chatter import quiet
from . import engine_loaded  # noqa: F401

with quiet():
    import keras  # noqa: F401

from ..replica import keras_optimizers, keras_tensorflow, keras_variables  # noqa: F401
