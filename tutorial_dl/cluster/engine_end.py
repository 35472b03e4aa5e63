"""How an engine in a batch job ends when it is told to: at once, and without leaving anything.

An engine that ends in order waits in MPI_Finalize for all ranks and for the launcher. But when a
job is cancelled, the launcher ends first, so engines would wait until the batch system kills them.
So at SIGTERM an idle engine closes what Python keeps open, and ends without MPI_Finalize; one that
runs a cell, perhaps in a call that nothing can interrupt, ends as programs do by default.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import re
import signal
from pathlib import Path

from .batch_job import OF_A_JOB

SECONDS = 2  # for functions that run at exit; then the engine ends in any case
SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+$", re.MULTILINE)


class Ending:
    """Decides what SIGTERM does to this engine; nothing changes outside a batch job."""

    def __init__(self) -> None:
        self._in_job = any(map(OF_A_JOB.fullmatch, os.environ))
        unlink_segments()
        self.idle()

    def idle(self) -> None:
        if self._in_job:
            signal.signal(signal.SIGTERM, leave)

    def busy(self) -> None:
        if self._in_job:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave(number: int, frame: object) -> None:
    """End this process at once, after closing its files."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    try:
        atexit._run_exitfuncs()  # MPI_Finalize is not one of them: mpi4py registers it in C
        for each in gc.get_objects():
            if isinstance(each, (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
                # It is closed, or its disk is full, or the signal came while it was written.
                with contextlib.suppress(ValueError, OSError, RuntimeError):
                    each.flush()
    finally:
        os._exit(128 + number)


def unlink_segments() -> None:
    """Remove the name of the memory that MPICH shares among the ranks of a node.

    All of them have it mapped after MPI_Init. MPICH removes the name in MPI_Finalize only, which a
    rank that is killed never reaches.
    """
    with contextlib.suppress(OSError):
        for path in set(SEGMENT.findall(Path("/proc/self/maps").read_text())):
            with contextlib.suppress(FileNotFoundError):  # another rank was first
                os.unlink(path)
