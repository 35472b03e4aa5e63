"""How an engine in a batch job ends when it is told to: at once, and without leaving anything.

The last thing that an engine does is to wait in MPI_Finalize for all ranks and for the launcher.
But when a job is cancelled, the launcher ends first, so engines would wait until the batch system
kills them. So at SIGTERM an idle engine ends in order, which closes what Python keeps open, but is
ended if that takes long. One that runs a cell, perhaps in a call that nothing can interrupt, ends
at once, as programs do by default.
"""

from __future__ import annotations

import os
import signal
import sys

from numba_kernels.shared.segments import unlink_segments

from .batch_job import OF_A_JOB

SECONDS = 2  # to end in order


class Ending:
    """Decides what SIGTERM does to this engine; nothing changes outside a batch job."""

    def __init__(self) -> None:
        self._in_job = any(map(OF_A_JOB.fullmatch, os.environ))
        self._in_order = signal.getsignal(signal.SIGTERM)  # ipyparallel's handler
        unlink_segments()
        self.idle()

    def idle(self) -> None:
        if self._in_job:
            signal.signal(signal.SIGTERM, self._leave)

    def busy(self) -> None:
        if self._in_job:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _leave(self, number: int, frame: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process wherever it is
        signal.alarm(SECONDS)
        if callable(self._in_order):
            self._in_order(number, frame)
        else:
            sys.exit(128 + number)
