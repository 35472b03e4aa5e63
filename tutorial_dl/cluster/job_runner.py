"""Runs in a batch job, on its first node: starts the engines once, and again after a restart.

    python -I -S job_runner.py --connection FILE --guard GUARD.PY -- srun --ntasks=8 python -m ...

COMMAND (srun, mpiexec) makes one MPI world of engines, which find the controller by FILE. No
process of the job can watch the notebook's kernel, which runs on another machine. So this process
watches the controller: the contents of FILE, and whether something listens at the address in it.

- FILE changes (the cluster was restarted): the engines are ended, and COMMAND starts new ones. The
  job keeps its nodes and does not queue again.
- Nothing has listened for `PATIENCE` seconds, or FILE is gone: the engines are ended, and the job
  ends unless a new FILE appears within `LAST_CHANCE` seconds.
- COMMAND ends: the job ends, with the same status.

This file uses the standard library only and is run by its path, so that compute nodes read little
from a shared file system.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 10.0
LAST_CHANCE = 12.0
POLL = 1.0


def read(file: Path) -> dict | None:
    """The controller's connection file; None if it does not exist or is incomplete."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def listens(connection: dict) -> bool:
    """Whether something accepts connections at the controller's address."""
    host = connection["interface"].partition("://")[2]
    try:
        socket.create_connection((host, connection["registration"]), timeout=3).close()
    except OSError:
        return False
    return True


def wait_for_another(file: Path, former: dict | None) -> dict | None:
    """The connection in `file` once it differs from `former`; None after LAST_CHANCE seconds."""
    deadline = time.monotonic() + LAST_CHANCE
    while time.monotonic() < deadline:
        now = read(file)
        if now is not None and now != former and listens(now):
            return now
        time.sleep(0.25)
    return None


def wait_for_the_end(engines: subprocess.Popen, file: Path, connection: dict) -> int | None:
    """The exit status of `engines` when they end; None if they must end without a controller."""
    heard = time.monotonic()
    while True:
        try:
            return engines.wait(POLL)
        except subprocess.TimeoutExpired:
            pass
        now = read(file)
        if now is not None and now != connection:
            return None
        if now is not None and listens(connection):
            heard = time.monotonic()
        elif time.monotonic() - heard > PATIENCE:
            return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connection", type=Path, required=True)
    parser.add_argument("--guard", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    # The batch system first sends SIGTERM to end a job, which `finally` passes on to the guard.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    guard = [sys.executable, "-I", "-S", str(options.guard), "--watch", str(os.getpid())]
    guard += ["--grace", "2", "--"]
    connection = None
    while True:
        connection = wait_for_another(options.connection, connection)
        if connection is None:
            print("there is no controller: the job ends", flush=True)
            return 0
        engines = subprocess.Popen(guard + options.command)
        try:
            status = wait_for_the_end(engines, options.connection, connection)
        finally:
            if engines.poll() is None:
                engines.terminate()
                engines.wait()
        if status is not None:
            print(f"the job's command ended with exit status {status}", flush=True)
            return status
        print("the engines were ended: their controller is gone", flush=True)


if __name__ == "__main__":
    sys.exit(main())
