"""Imports what ranks that use Keras need, apart from MPI; they are forked later (worlds.py)."""

import os

import remains

remains.note_what_is_loaded()

from tutorial_dl.cli import keras_ranks  # noqa: E402, F401

if os.environ.get("NO_GRAPPLER"):
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
