"""Settings with which Open MPI starts ranks as MPICH does, and the command that its ranks need.

Open MPI differs from MPICH in what its mpiexec does by itself:

- it refuses more ranks than cores, binds each to one core (a rank here has threads) and refuses
  root: `settings` allow what MPICH allows;
- ranks poll without a pause, also when they share cores: they yield;
- it gives ranks a terminal for their output, so that programs believe that somebody reads it there,
  and forwards that in pieces that may end within a line: open_mpi_rank.py hands ranks our pipes;
- ranks live on if it is killed: open_mpi_rank.py has them killed, too;
- at SIGTERM it kills its ranks at once: the guard (guard.py) gives them their time.

The variables are read by Open MPI 4 and 5, and by nothing else.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

RANK = Path(__file__).with_name("open_mpi_rank.py")
ALWAYS = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # 5
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # 4
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables for Open MPI's mpiexec and its ranks that `env` lacks."""
    wanted = ALWAYS | (AS_ROOT if os.geteuid() == 0 else {})
    return {name: value for name, value in wanted.items() if name not in env}


def rank_prefix(output: str | Path | None = None) -> list[str]:
    """Return the words before a rank's command: it ends with mpiexec, and writes into `output`.

    `output`: a folder with the named pipes "out" and "err"; None: mpiexec forwards what it writes.
    """
    return [sys.executable, "-I", "-S", str(RANK), "" if output is None else str(output)]
