"""The MPI that ranks of the tests use, MPICH or Open MPI, and the one that they do not use."""

from __future__ import annotations

from numba_kernels import launch

SAYS = {  # what an mpiexec answers to --version
    "MPICH": "HYDRA build details:",
    "Open MPI": "mpiexec (OpenRTE) 4.1.4",
}


def mine() -> str:
    return "Open MPI" if launch.is_open_mpi() else "MPICH"


def theirs() -> str:
    return "MPICH" if launch.is_open_mpi() else "Open MPI"
