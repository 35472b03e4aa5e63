"""Imports what engines need, apart from MPI; those of this machine are forked afterwards.

(processes.py starts them; launch/fork_server.py says what is safe.)
"""

import ipyparallel.engine.app  # noqa: F401
import numpy.random  # noqa: F401
from numba.core.registry import cpu_target

from . import cell_display, engine_hooks  # noqa: F401

# What Numba would import for the first kernel
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
