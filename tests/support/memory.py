"""Measures the memory of all ranks together while they work.

The proportional set size of a process counts a page that k processes share as 1/k of a page. So
the sum over the ranks of a node counts each page once. Pages of files are left out, because the
number of processes that share a library depends on what else runs at the time.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np


def proportional(pid: int) -> int:
    """Bytes of private pages, plus the process's part of shared ones (Linux 5.4 or newer)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    pages = {name: int(kib) for name, kib, *_ in map(str.split, lines)}
    return 1024 * (pages["Pss_Anon:"] + pages["Pss_Shmem:"])


class Peak:
    """After `with Peak(team) as peak: ...`, `peak.bytes` is the largest growth of all ranks.

    Rank 0 looks at all ranks every few milliseconds. Run the code once before, so that it is
    loaded.
    """

    def __init__(self, team):
        self.team, self.bytes, self.looks = team, 0, 0
        self._pids = [int(pid) for pid in team.allgather(np.array([os.getpid()], "f8"))[:, 0]]
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._over = threading.Event()

    def _all(self) -> int:
        return sum(proportional(pid) for pid in self._pids)

    def _watch(self) -> None:
        while not self._over.is_set():
            self.bytes = max(self.bytes, self._all() - self._before)
            self.looks += 1
            time.sleep(0.003)

    def __enter__(self):
        self.team.barrier()
        self._before = self._all()
        self.team.barrier()
        if self.team.rank == 0:
            self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            return
        self.team.barrier()  # no rank has freed anything yet
        if self.team.rank == 0:
            self._over.set()
            self._thread.join()
            self.bytes = max(self.bytes, self._all() - self._before)
        self.bytes = int(self.team.broadcast(np.array([self.bytes], "f8"))[0])
        self.team.barrier()
