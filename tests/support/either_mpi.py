"""The MPI that ranks of the tests use, MPICH or Open MPI, and the one that they do not use."""

from __future__ import annotations

from numba_kernels import launch
from numba_kernels.launch.remarks import Remarks

SAYS = {  # what an mpiexec answers to --version
    "MPICH": "HYDRA build details:",
    "Open MPI": "mpiexec (OpenRTE) 4.1.4",
}


def mine() -> str:
    return "Open MPI" if launch.is_open_mpi() else "MPICH"


def theirs() -> str:
    return "MPICH" if launch.is_open_mpi() else "Open MPI"


def says_version() -> str:
    """The beginning of a shell script that claims to be the mpiexec of the MPI that is loaded."""
    return f'if [ "$1" = --version ]; then echo "{SAYS[mine()]}"; exit; fi'


def without_remarks(text: str) -> str:
    """What ranks have printed, without what an mpiexec of the user's own has added."""
    remarks = Remarks()
    return (remarks.feed(text.encode()) + remarks.feed(b"", last=True)).decode()
