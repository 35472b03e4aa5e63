"""Imports what ranks without Keras need, apart from MPI; they are forked later (preloaded.py)."""

import remains

remains.note_what_is_loaded()

import light_pytest  # noqa: E402, F401
import numpy.random  # noqa: E402, F401
from numba.core.registry import cpu_target  # noqa: E402

from tutorial_dl.cli import commands, train  # noqa: E402, F401

# What Numba would import for the first kernel
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
