"""Processes and files in shared memory that a test left behind.

Every process that descends from the test session has the variable MARK in its environment. So each
is found, whatever its name, its parent or its session, and no other process is.

A file in shared memory does not tell which test made it. If pytest-xdist runs tests side by side,
a new file may be another worker's. So files are checked once all workers have ended (conftest.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

import psutil

VARIABLE = "TUTORIAL_DL_TEST_SESSION"
SHARED_MEMORY = Path("/dev/shm")

_standing: set[int] = set()
# {mark: (processes without it, those that were so at the last call only)}
_unmarked: dict[str, tuple[set[str], set[str]]] = {}


def stay(pid: int) -> None:
    """Let process `pid` and its present descendants stay when the running test ends."""
    process = psutil.Process(pid)
    _standing.update([pid, *(child.pid for child in process.children(recursive=True))])


def candidates(mark: str, variable: str = VARIABLE) -> list[int]:
    """Pids of processes that may have `mark`; where /proc can be read, only those that have it.

    Each test does this twice. Asking psutil about each process took six times as long; and of
    processes that were here at the last two calls, without the mark, nothing is read again.
    """
    if not Path("/proc/self/environ").exists():
        return psutil.pids()
    setting, found, without = f"{variable}={mark}".encode(), [], set()
    here = set(filter(str.isdigit, os.listdir("/proc")))
    others, once = _unmarked.get(mark, (set(), set()))
    others &= here
    for name in here - others:
        # OSError: the process has ended, or belongs to another user.
        with suppress(OSError), open(f"/proc/{name}/environ", "rb", buffering=0) as file:
            if setting in file.read():
                found.append(int(name))
            else:  # it may be a fork that will be another program in a moment
                without.add(name)
    _unmarked[mark] = others | (without & once), without
    return found


def processes(mark: str, known: Set[int] = frozenset()) -> list[psutil.Process]:
    """Living processes with `mark` in their environment, without this one and the `known` ones."""
    found = []
    for pid in set(candidates(mark)) - known:
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
    """New files in shared memory that no process has mapped or open, so nobody removes them."""
    new = segments() - before
    for process in psutil.process_iter() if new else ():
        held = set()
        try:
            for file in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed in the meantime
                    held.add(file.readlink().name)
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        new = {name for name in new if name not in held and f"/{name}" not in maps}
    return new & segments()


def left_in_shared_memory(before: set[str], patience: float) -> set[str]:
    """Names of new files that no process holds and that still exist after `patience` seconds."""
    deadline = time.monotonic() + patience
    while (files := abandoned(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return files


def check(mark: str, known: set[int], before: set[str] | None, patience: float = 5.0) -> list[str]:
    """Describe what is left after `patience` seconds, and end the processes among it.

    known: pids that may stay, for example of a cluster that a module's tests share.
    before: files that were in shared memory before the test; None: do not check files.
    """
    deadline = time.monotonic() + patience
    while True:
        left = processes(mark, known | _standing)
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
