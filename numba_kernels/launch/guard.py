"""A small process between us and mpiexec, so that no rank ever outlives the run it belongs to.

    python -I -S guard.py --watch PID [--watch PID ...] [--grace SECONDS]
                           [--remove FOLDER] -- COMMAND [ARGUMENT ...]

mpiexec puts its ranks into sessions of their own: closing the terminal, killing the process group
or killing the parent does not reach them. The guard starts COMMAND as its child and

- makes itself the parent that orphans below it fall to (Linux: child subreaper), so it can find
  every descendant, whatever session or group that has moved to;
- passes the first SIGINT, SIGTERM or SIGHUP on to COMMAND, and ends everything `grace` seconds
  later, or at the second signal;
- ends everything when one of the watched processes ends, even by SIGKILL;
- ends what COMMAND left behind when COMMAND itself ends, removes shared memory that ranks which
  died could not, removes FOLDER if one was named, and exits with COMMAND's status.

Runs by its path, on the standard library alone: starting it costs some 20 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
SHARED_MEMORY = "/dev/shm"
SEGMENTS = ("mpich_shm_", "vader_segment.", "sm_segment.")  # of MPICH, Open MPI 4 and 5
POLL = 0.5  # seconds between looks at what cannot wake us


def prctl(option: int, value: int) -> None:
    """Linux's prctl(2); elsewhere nothing, and mpiexec's own care for its ranks has to do."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Pids of all processes below `root`, parents before children (empty without /proc)."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it ended meanwhile
                with open(f"/proc/{name}/stat", "rb") as file:
                    # "pid (command) state ppid ...", and the command may hold any character
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = list(children.get(root, []))
    for pid in found:  # grows while we walk it
        found += children.get(pid, [])
    return found


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class Watched:
    """A process that need not be our child: has it ended? (A zombie has.)"""

    def __init__(self, pid: int):
        self.pid, self.descriptor, self.gone = pid, None, False
        try:
            # Holds on to this very process: a later one with the same pid does not count.
            self.descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.gone = True
        except (AttributeError, OSError):  # not Linux, or older than 5.3: ask every POLL seconds
            pass

    def has_ended(self) -> bool:
        if self.descriptor is not None:
            return bool(select.select([self.descriptor], [], [], 0)[0])
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            self.gone = True
        except PermissionError:
            pass
        return self.gone


def reap(child: int) -> int | None:
    """Collect ended children; the exit status of `child` if it was among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, raw = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(raw)
                status = code if code >= 0 else 128 - code  # as a shell reports signals
    return status


def end_all(child: int, grace: float) -> int | None:
    """SIGTERM to whatever is below us, `grace` seconds later SIGKILL, until nothing is left."""
    status, kill_at, told = None, time.monotonic() + grace, set()
    while True:
        code = reap(child)
        status = status if code is None else code
        alive = descendants(os.getpid())
        if not alive:
            return status
        for pid in alive:
            if time.monotonic() >= kill_at:
                send(pid, signal.SIGKILL)
            elif pid not in told:
                send(pid, signal.SIGTERM)
                told.add(pid)
        time.sleep(0.02)


def segments() -> set[str]:
    """Files of MPI libraries in shared memory, this user's."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHARED_MEMORY):
            with contextlib.suppress(OSError):
                if entry.name.startswith(SEGMENTS) and entry.stat().st_uid == os.geteuid():
                    found.add(entry.path)
    return found


def remove_abandoned(before: set[str]) -> None:
    """Remove segments that are not in `before` and that no process holds.

    MPI removes its segments in MPI_Finalize, which a rank that was killed never reached. Other runs
    may be alive: a segment is theirs if a process has it open or mapped. Looking at open files
    first and at maps second misses none, as a process maps a file before it closes it.
    """
    abandoned = segments() - before
    if not abandoned:
        return
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            for descriptor in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    abandoned.discard(os.readlink(f"/proc/{name}/fd/{descriptor}"))
            with open(f"/proc/{name}/maps", errors="replace") as file:
                maps = file.read()
            abandoned = {path for path in abandoned if path not in maps}
    for path in abandoned:
        with contextlib.suppress(OSError):
            os.unlink(path)


def guard(command: list[str], watch: list[int], grace: float) -> int:
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: received.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    wake, wake_write = os.pipe()  # every signal writes a byte here, which ends the wait below
    os.set_blocking(wake, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    watched = [Watched(pid) for pid in watch]

    child = os.fork()  # safe: this process has one thread
    if child == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should the guard itself be killed
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)

    deadline = None
    wait_for = [wake] + [w.descriptor for w in watched if w.descriptor is not None]
    while True:
        status = reap(child)
        if status is not None:
            end_all(child, grace=1.0)
            return status
        if len(received) > 1 or (deadline is not None and time.monotonic() > deadline):
            return end_all(child, grace=0.0) or 128 + signal.SIGKILL
        if any(process.has_ended() for process in watched):
            return end_all(child, grace=min(grace, 2.0)) or 128 + signal.SIGHUP
        if received and deadline is None:
            deadline = time.monotonic() + grace
            send(child, received[0])
        if select.select(wait_for, [], [], POLL)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)


def main() -> None:
    parser = argparse.ArgumentParser(description="run COMMAND and leave nothing of it behind")
    parser.add_argument("--watch", type=int, action="append", default=[], metavar="PID")
    parser.add_argument("--grace", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--remove", metavar="FOLDER")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    before = segments()
    status = guard(options.command, options.watch, options.grace)
    remove_abandoned(before)
    if options.remove:
        import shutil

        shutil.rmtree(options.remove, ignore_errors=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
