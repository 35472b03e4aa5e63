"""What a test left running or in shared memory.

Every process that descends from the test session carries a variable of its environment, MARK, so
that it is found whatever its name, its parent or its session, and nothing else ever is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

VARIABLE = "TUTORIAL_DL_TEST_SESSION"
SHARED_MEMORY = Path("/dev/shm")


def processes(mark: str) -> list[psutil.Process]:
    """Living processes whose environment carries `mark`, without this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(VARIABLE) == mark
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            continue
    return found


def segments() -> set[str]:
    """Names of files in shared memory."""
    return set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()


def abandoned(before: set[str]) -> set[str]:
    """New files in shared memory that no process has mapped or open: nobody will remove them."""
    new = segments() - before
    for process in psutil.process_iter() if new else ():
        try:
            held = {Path(os.readlink(f)).name for f in Path(f"/proc/{process.pid}/fd").iterdir()}
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        new = {name for name in new if name not in held and f"/{name}" not in maps}
    return new & segments()


def check(mark: str, known: set[int], before: set[str], patience: float = 5.0) -> list[str]:
    """Descriptions of what is left after `patience` seconds; what was running is ended.

    known: pids that may stay (a cluster that a module's tests share).
    """
    deadline = time.monotonic() + patience
    while True:
        left = [p for p in processes(mark) if p.pid not in known]
        files = abandoned(before)
        if not left and not files:
            return []
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    what = []
    for process in left:
        try:
            what.append(f"process {process.pid}: {' '.join(process.cmdline())[:200]}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return what + [f"shared memory: {SHARED_MEMORY / name}" for name in sorted(files)]
