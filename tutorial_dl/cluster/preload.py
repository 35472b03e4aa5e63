"""Imports what engines need, apart from MPI; those of this machine are forked afterwards.

(processes.py starts them; launch/fork_server.py says what is safe.) The variable PRELOAD of the
environment has modules that the profile names.
"""

import importlib
import os

import numpy.random  # noqa: F401
from numba.core.registry import cpu_target

from ..tensorflow_chatter import hide_tensorflow_chatter
from . import engine  # noqa: F401
from .processes import PRELOAD

# What Numba would import for the first kernel
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
if names := os.environ.get(PRELOAD, "").split():
    hide_tensorflow_chatter()
    for name in names:
        importlib.import_module(name)
