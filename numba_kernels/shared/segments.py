"""The shared memory in which the MPI library itself keeps what the ranks of a node send."""

import contextlib
import functools
import os
import re
from pathlib import Path

# Of MPICH, and of Open MPI 4 and 5
SEGMENT = re.compile(r"/dev/shm/(?:mpich_shm_|vader_segment\.|sm_segment\.)\S+$", re.MULTILINE)


@functools.cache
def unlink_segments() -> None:
    """Remove, once, the names of the segments that this process has mapped; their memory stays.

    All ranks of a node have them mapped after MPI_Init. MPICH removes the names in MPI_Finalize
    only, which a rank that is killed never reaches. Open MPI leaves that to its mpiexec, and a
    process that was started without one leaves them behind.
    """
    with contextlib.suppress(OSError):
        for path in set(SEGMENT.findall(Path("/proc/self/maps").read_text())):
            with contextlib.suppress(FileNotFoundError):  # another rank was first
                os.unlink(path)
