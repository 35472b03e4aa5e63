"""Imports what a rank needs to train a Keras model, apart from MPI (launch/fork_server.py)."""

from numba.core.registry import cpu_target

from ..tensorflow_chatter import quiet

with quiet():
    import keras  # noqa: F401

from ..replica.keras import optimizers, replica, weights  # noqa: F401
from . import commands, train  # noqa: F401

# What Numba would import for the first kernel
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
