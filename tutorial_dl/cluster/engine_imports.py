"""Imports what every engine needs, apart from MPI (launch/fork_server.py)."""

import ipykernel.zmqshell  # noqa: F401
import ipyparallel.engine.app  # noqa: F401
from numba.core.registry import cpu_target

from . import engine_hooks  # noqa: F401

# What Numba would import for the first kernel
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
