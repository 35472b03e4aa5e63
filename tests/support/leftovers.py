"""What a test left running or in shared memory.

Every process that descends from the test session carries a variable of its environment, MARK, so
that it is found whatever its name, its parent or its session, and nothing else ever is.

Files in shared memory don't tell whose they are. Where pytest-xdist runs tests side by side a new
one may be another worker's, so they are judged once, when all workers have ended (conftest.py).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

VARIABLE = "TUTORIAL_DL_TEST_SESSION"
SHARED_MEMORY = Path("/dev/shm")

_standing: set[int] = set()


def stay(pid: int) -> None:
    """Process `pid` and those that are below it now may stay when the test that runs ends."""
    process = psutil.Process(pid)
    _standing.update([pid, *(child.pid for child in process.children(recursive=True))])


def candidates(mark: str) -> list[int]:
    """Pids of processes that may carry `mark`: where there are files to read, those that do.

    This is done twice a test; asking psutil about each process took six times as long.
    """
    if not Path("/proc/self/environ").exists():
        return psutil.pids()
    variable, found = f"{VARIABLE}={mark}".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is another user's
            if variable in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found


def processes(mark: str) -> list[psutil.Process]:
    """Living processes whose environment carries `mark`, without this one."""
    found = []
    for pid in candidates(mark):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            process = psutil.Process(pid)
            if (
                pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(VARIABLE) == mark
            ):
                found.append(process)
    return found


def segments() -> set[str]:
    """Names of files in shared memory."""
    return set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()


def abandoned(before: set[str]) -> set[str]:
    """New files in shared memory that no process has mapped or open: nobody will remove them."""
    new = segments() - before
    for process in psutil.process_iter() if new else ():
        held = set()
        try:
            for file in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed since: this process's own listing is
                    held.add(file.readlink().name)
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        new = {name for name in new if name not in held and f"/{name}" not in maps}
    return new & segments()


def left_in_shared_memory(before: set[str], patience: float) -> set[str]:
    """Names of new files that nobody holds, and that are there after `patience` seconds, too."""
    deadline = time.monotonic() + patience
    while (files := abandoned(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return files


def check(mark: str, known: set[int], before: set[str] | None, patience: float = 5.0) -> list[str]:
    """Descriptions of what is left after `patience` seconds; what was running is ended.

    known: pids that may stay (a cluster that a module's tests share).
    before: files in shared memory that were there; None where they are not asked for.
    """
    deadline = time.monotonic() + patience
    while True:
        left = [p for p in processes(mark) if p.pid not in known | _standing]
        files = set() if before is None else abandoned(before)
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
