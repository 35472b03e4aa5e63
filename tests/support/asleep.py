"""Ranks of tests sleep soon where they wait, because ranks of several workers share the cores.

A rank that waits in a team first looks again and again, and yields its core, for 0.2 ms. With no
more ranks than cores that is the fastest. But in `make test` four workers share the cores; and
where a master and its worker wait for each other 14,000 times, it was two thirds of what they took.
So teams of tests wait as those do whose ranks outnumber the cores. (tests/soak, which measures,
takes the variable back, so there ranks wait as a user's do.)
"""

from __future__ import annotations

import os
from types import ModuleType

ASLEEP = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}  # the same of MPICH's own waits
WINDOWS = "numba_kernels.team.windows"  # the module that finds out how a team may wait


def let_teams_sleep(windows: ModuleType) -> None:
    """Change the module WINDOWS of a rank of a test, unless this is tests/soak."""
    if any(os.environ.get(name) != value for name, value in ASLEEP.items()):
        return
    find_node = windows.find_node

    def found(team, shared, patience):
        find_node(team, shared, patience)
        windows.share_core(team)

    windows.find_node = found
