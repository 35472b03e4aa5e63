"""Imports what ranks that use Keras need, apart from MPI; they are forked later (preloaded.py)."""

import remains

remains.note_what_is_loaded()

from tutorial_dl.cli import keras_ranks  # noqa: E402, F401
