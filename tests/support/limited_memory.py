"""Runs commands with no more memory than a limit, and measures the memory of all their processes.

The limit is that of a cgroup, where this user may make one: the kernel then ends a process if all
together need more, as in a container. Elsewhere the sum of their memory is looked at twice per
second, and all are ended when it is above the limit. (RLIMIT_AS would count addresses, of which
TensorFlow reserves many times what it uses.)
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import leftovers
import psutil
from memory import proportional

from numba_kernels import environment

VARIABLE = "TUTORIAL_DL_TEST_LIMIT"
# Versions 2 and 1 of cgroups: memory, and what may be swapped out (in version 1, both together)
FILES = ("memory.max", "memory.limit_in_bytes")
SWAP = {"memory.swap.max": 0, "memory.memsw.limit_in_bytes": 1}
EVENTS = ("memory.events", "memory.oom_control")


def make_group(limit: int) -> Path | None:
    """A new cgroup with at most `limit` bytes of memory below one of ours; None if we may not."""
    for outer in environment.cgroups("memory"):
        folder = outer / f"test-{uuid.uuid4().hex[:8]}"
        with suppress(OSError):
            folder.mkdir()
            if _limited(folder, limit):
                return folder
            folder.rmdir()
    return None


def _limited(folder: Path, limit: int) -> bool:
    """Limit the memory of a cgroup; whether that holds, although processes could be swapped out."""
    for name in FILES:
        with suppress(OSError):
            (folder / name).write_text(str(limit))
            break
    else:
        return False
    for name, share in SWAP.items():
        with suppress(OSError):
            (folder / name).write_text(str(share * limit))
            return True
    return psutil.swap_memory().total == 0


class Limited:
    """`with Limited(2 * 10**9) as limited: limited.start(command, environment)`.

    At the end all processes that were started, and those that these started, are killed.

    Attributes:
        peak: The largest sum of memory so far, in bytes, without pages of files, which the kernel
            can read again. A page that k processes share counts 1/k for each.
        way: How the limit is enforced, for a report.
    """

    def __init__(self, limit: int):
        assert Path("/proc/self/environ").exists(), "only on Linux"  # else all would be candidates
        self.limit, self.peak, self.exceeded = limit, 0, False
        self._mark, self._over = uuid.uuid4().hex, threading.Event()
        self._group = make_group(limit)
        self.way = "cgroup" if self._group else "sum of memory"
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self, command: list[str], environment: dict[str, str], **of_popen):
        """Start a command, of which all descendants are under the limit."""
        if self._group:
            file = str(self._group / "cgroup.procs")
            command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', file, *command]
        return subprocess.Popen(command, env=environment | {VARIABLE: self._mark}, **of_popen)

    def out_of_memory(self) -> bool:
        """Whether a process was ended because of the limit."""
        for name in EVENTS if self._group else ():
            with suppress(OSError):
                found = re.search(r"^oom_kill (\d+)$", (self._group / name).read_text(), re.M)
                return int(found[1]) > 0
        return self.exceeded

    def pids(self) -> list[int]:
        if self._group:
            return [int(pid) for pid in (self._group / "cgroup.procs").read_text().split()]
        return leftovers.candidates(self._mark, VARIABLE)

    def sum(self) -> int:
        total = 0
        for pid in self.pids():
            with suppress(OSError, KeyError):  # it has ended
                total += proportional(pid)
        return total

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.peak = max(self.peak, self.sum())
            if self.peak > self.limit and not self._group:
                self.exceeded = True
                self._kill()

    def _kill(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        while self.pids():  # until none of them has started another
            self._kill()
            time.sleep(0.05)
        if self._group:
            for _ in range(100):
                with suppress(OSError):  # the last process has just ended
                    self._group.rmdir()
                    return
                time.sleep(0.1)
