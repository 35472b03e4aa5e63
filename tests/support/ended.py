"""Whether processes have ended, in time."""

import subprocess
import time
from collections.abc import Callable, Iterable

import psutil

SECONDS = 300


def until(ready: Callable, seconds: float = SECONDS):
    """Wait for a true value of `ready()`, and return it."""
    deadline = time.monotonic() + seconds
    while not (value := ready()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
    return value


def gone(process: psutil.Process) -> bool:
    """Whether the process has ended; a zombie has, though psutil would wait for its parent."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_gone(processes: Iterable[psutil.Process]) -> None:
    until(lambda: all(map(gone, processes)))


def wait_for(condition: Callable, process: subprocess.Popen) -> None:
    """Wait until the condition holds, while the process runs."""
    until(lambda: condition() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
