"""Ranks of tests sleep soon where they wait, because ranks of several workers share the cores.

A rank that waits in a team first looks again and again, and yields its core, for 0.2 ms. With no
more ranks than cores that is the fastest. But in `make test` four workers share the cores; and
where a master and its worker wait for each other 14,000 times, it was two thirds of what they took.
So teams of tests wait as those do whose ranks outnumber the cores. (tests/soak, which measures,
takes the variable back, so there ranks wait as a user's do.)

A user's two ranks may be woken, or fail, while they still look. So in the files of AWAKE, teams of
two ranks wait as a user's do in `make test`, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

ASLEEP = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}  # the same of MPICH's own waits
WINDOWS = "numba_kernels.team.windows"  # the module that finds out how a team may wait
AWAKE = {"test_allreduce.py", "test_star.py", "test_recovery.py"}
_file = ""  # of the function that runs


def runs(file: str | Path) -> None:
    """Say which test file the teams to come are made by."""
    global _file
    _file = Path(file).name


def let_teams_sleep(windows: ModuleType) -> None:
    """Change the module WINDOWS of a rank of a test, unless this is tests/soak."""
    if any(os.environ.get(name) != value for name, value in ASLEEP.items()):
        return
    find_node = windows.find_node

    def found(team, shared, patience):
        find_node(team, shared, patience)
        if team.size != 2 or _file not in AWAKE:
            sleep_soon(team)

    windows.find_node = found


def sleep_soon(team) -> None:
    """Let the team's waits be those of a team whose ranks outnumber the cores."""
    from numba_kernels.allreduce import messages
    from numba_kernels.shared.node_array import CROWDED_SPINS, SPINS

    team.node_array[SPINS] = CROWDED_SPINS
    for one in team.routes:
        one.link.words[messages.SPINS] = 0
