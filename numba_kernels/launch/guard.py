"""A supervisor process between the launcher and mpiexec, so that no rank outlives its run.

    python -I -S guard.py --watch PID [--watch PID ...] [--grace SECONDS]
                           [--remove FOLDER] -- COMMAND [ARGUMENT ...]

mpiexec puts its ranks into separate sessions, so closing the terminal, killing the process group or
killing the parent does not end them. The guard starts COMMAND as its child and

- becomes the parent of all orphans below it (Linux: child subreaper), so it can find every
  descendant, whatever session or process group it has moved to;
- passes the first SIGINT, SIGTERM or SIGHUP on to COMMAND, and ends all processes `grace` seconds
  later, or at the second signal. Open MPI's mpiexec would then kill its ranks at once, so its
  ranks on this machine get the signal instead, and it gets one only when they have ended;
- ends all processes when one of the watched processes ends, even by SIGKILL;
- when COMMAND ends, it ends the processes that COMMAND left behind, removes shared memory of ranks
  that died before they could do so, removes FOLDER if given, and exits with COMMAND's status.

A guard that is killed together with its ranks removes nothing: the next one of the same user does,
before it starts COMMAND.

It is run by its path and needs only the standard library, so it starts in about 20 ms.
"""

import argparse
import contextlib
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
SHARED_MEMORY = "/dev/shm"
# Of MPICH, Open MPI 4 and 5, and UCX, which removes the name at once, unless it is killed before
SEGMENTS = ("mpich_shm_", "vader_segment.", "sm_segment.", "ucx_shm_posix_")
# Made by MPICH's mpiexec, and read by its ranks as they start
TOPOLOGY, PROXIES = "hydra_hwloc_xmlfile_", ("hydra_pmi_proxy", "mpiexec", "mpiexec.hydra")
# Seconds after which what no process holds was left behind, and is not being made: also by another
# container that shares /dev/shm, or a node that shares TMPDIR, whose processes are not seen here.
AGE = 600.0
OPEN_MPI_RANK = b"OMPI_COMM_WORLD_RANK="  # in the environment of its ranks
POLL = 0.5  # seconds between checks of events that cannot wake this process


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl(2). Elsewhere do nothing, and rely on mpiexec to end its ranks."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> dict[int, int]:
    """Return {pid: its parent's} of all processes below `root`, parents first (Linux)."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # the process has ended meanwhile
                with open(f"/proc/{name}/stat", "rb") as file:
                    # "pid (command) state ppid ...", where the command may contain any character
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, of = list(children.get(root, [])), dict.fromkeys(children.get(root, []), root)
    for pid in found:  # the list grows during the loop
        found += children.get(pid, [])
        of |= dict.fromkeys(children.get(pid, []), pid)
    return of


def ranks_below(root: int) -> dict[int, int]:
    """Return {pid: its mpiexec's} of the ranks that Open MPI's mpiexec has started below `root`."""
    of = descendants(root)
    inside = {pid for pid in of if is_rank(pid)}
    return {pid: of[pid] for pid in inside if of[pid] not in inside}


def is_rank(pid: int) -> bool:
    """Return whether Open MPI's mpiexec has started this process, or one above it."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return b"\0" + OPEN_MPI_RANK in b"\0" + file.read()
    return False


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class Watched:
    """A process, not necessarily our child, of which we ask if it has ended (a zombie has)."""

    def __init__(self, pid: int):
        self.pid, self.descriptor, self.gone = pid, None, False
        try:
            # A descriptor of this very process, so a later one with the same pid does not count.
            self.descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.gone = True
        except (AttributeError, OSError):  # not Linux, or before 5.3: check every POLL seconds
            pass

    def has_ended(self) -> bool:
        if self.gone:
            return True
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
    """Reap children that have ended; return the exit status of `child` if it is among them."""
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
    """Send SIGTERM to all descendants, SIGKILL after `grace` seconds; return `child`'s status."""
    status, kill_at, told = None, time.monotonic() + grace, set()
    while True:
        code = reap(child)
        status = status if code is None else code
        alive = descendants(os.getpid())
        if not alive:
            return status
        late = time.monotonic() >= kill_at
        spared = set() if late else set(ranks_below(os.getpid()).values())
        for pid in alive:
            if late:
                send(pid, signal.SIGKILL)
            elif pid not in told | spared:
                send(pid, signal.SIGTERM)
                told.add(pid)
        time.sleep(0.02)


def segments(age: float = 0.0) -> set[str]:
    return own_files(SHARED_MEMORY, SEGMENTS, age)


def own_files(folder: str, names: str | tuple[str, ...], age: float) -> set[str]:
    """Return this user's files whose names begin so, if they are so many seconds old."""
    found, last = set(), time.time() - age if age else float("inf")
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if not entry.name.startswith(names):  # first: there may be many, or a dead mount
                continue
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if about.st_uid == os.geteuid() and about.st_mtime <= last:
                    found.add(entry.path)
    return found


def sweep() -> None:
    """Remove what runs of this user that were killed, their guards too, have left behind.

    Ranks hold shared memory open or mapped. Nothing holds the file of the topology for long, so it
    stays while any of the user's runs has a process manager.
    """
    if sys.platform != "linux":
        return
    remove_abandoned(segments() - segments(AGE))
    if left := own_files(os.environ.get("TMPDIR", "/tmp"), TOPOLOGY, AGE):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended
                if os.stat(f"/proc/{name}").st_uid == os.geteuid():
                    with open(f"/proc/{name}/comm") as file:
                        if file.read().strip() in PROXIES:
                            return
        remove(left)


def remove(paths: set[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_abandoned(before: set[str]) -> None:
    """Remove segments that are not in `before` and that no process uses.

    MPI removes its segments in MPI_Finalize, which a killed rank never reaches. Segments that a
    process has open or mapped may belong to other runs. Open files are checked before maps, which
    misses none, as a process maps a file before it closes it.
    """
    abandoned = segments() - before
    if not abandoned:
        return
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            for descriptor in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    abandoned.discard(os.readlink(f"/proc/{name}/fd/{descriptor}"))
            with open(f"/proc/{name}/maps", errors="replace") as file:
                maps = file.read()
            abandoned = {path for path in abandoned if path not in maps}
    remove(abandoned)


def guard(command: list[str], watch: list[int], grace: float) -> int:
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: received.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    wake, wake_write = os.pipe()  # every signal writes a byte here, which ends the select below
    os.set_blocking(wake, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    watched = [Watched(pid) for pid in watch]

    child = os.fork()  # safe: this process has one thread
    if child == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # in case the guard itself is killed
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
            for pid in ranks_below(child) or [child]:
                send(pid, received[0])
        if select.select(wait_for, [], [], POLL)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run COMMAND and leave no process of it behind.")
    parser.add_argument("--watch", type=int, action="append", default=[], metavar="PID")
    parser.add_argument("--grace", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--remove", metavar="FOLDER")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    sweep()
    before = segments()
    status = guard(options.command, options.watch, options.grace)
    remove_abandoned(before)
    if options.remove:
        import shutil

        shutil.rmtree(options.remove, ignore_errors=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
