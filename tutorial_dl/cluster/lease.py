"""The lease of a cluster that may outlive the kernel which started it.

Every client holds a shared lock on the cluster's file `lease`. The operating system lets go of it
when a client ends, however it went, so a killed client renews nothing. A small process beside the
controller, the keeper, tries for the lock that nobody may share: when it has got it for SECONDS on
end, there is no client, and the keeper ends. The guards of controller and engines watch the keeper
and end them. Who removes the file ends the keeper too: stopping from any machine that sees it.

    python -I -S lease.py FOLDER SECONDS

When it ends, the keeper cancels the batch job that FOLDER/cluster.json names, if there is one.
"""

from __future__ import annotations

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
        # Not handed on to programs that this process starts: they would hold on to it too.
        self._descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # the keeper holds it for microseconds only

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


def cancel_job(folder: Path) -> None:
    """Cancel the job of the cluster, should it have one."""
    with contextlib.suppress(OSError, ValueError, KeyError, subprocess.SubprocessError):
        command = json.loads((folder / "cluster.json").read_text())["job"]["cancel"]
        subprocess.run(command, stdin=subprocess.DEVNULL, timeout=20)


def keep(folder: Path, seconds: float) -> None:
    """Return when no client has been there for `seconds`, or the lease's file is gone."""
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
        cancel_job(folder)


if __name__ == "__main__":
    main()
