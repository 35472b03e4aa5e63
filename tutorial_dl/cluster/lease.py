"""The lease of a cluster that may outlive the kernel that started it, and its watcher process.

Every client holds a shared lock on the cluster's file `lease`. The operating system releases it
when a client ends, however it ends. The watcher, a small process beside the controller, tries to
take the lock exclusively: if that succeeds for SECONDS in a row, there is no client, and it ends;
the guards of controller and engines then end them. Removing the file ends the watcher, too, so a
cluster can be stopped from any machine that sees the file.

    python -I -S lease.py FOLDER SECONDS

When it ends, the watcher cancels the batch job in FOLDER/cluster.json, if there is one.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FILE = "lease"
POLL = 0.5


class Lease:
    """A client's hold on the cluster in `folder`, until `release` or the end of this process."""

    def __init__(self, folder: Path):
        # O_CLOEXEC: programs that this process starts must not hold the lock, too.
        self._descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # the watcher holds it for microseconds only

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def has_clients(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def keep(folder: Path, seconds: float) -> None:
    """Return when there has been no client for `seconds`, or the lease's file is gone."""
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CLOEXEC)
    seen = time.monotonic()
    while os.path.exists(folder / FILE):
        now = time.monotonic()
        if has_clients(descriptor):
            seen = now
        elif now - seen > seconds:
            return
        time.sleep(POLL)


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # `finally` below runs
    try:
        keep(folder, seconds)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with contextlib.suppress(OSError, ValueError, KeyError, subprocess.SubprocessError):
            job = json.loads((folder / "cluster.json").read_text())["job"]
            if job is not None:
                subprocess.run(job["cancel"], stdin=subprocess.DEVNULL, timeout=20)


if __name__ == "__main__":
    main()
