"""Imports what a rank needs to train a Keras model, apart from MPI (launch/fork_server.py)."""

import numba  # noqa: F401

from ..tensorflow_chatter import quiet

with quiet():
    import keras  # noqa: F401
