"""Which engine's process ended first, and how: mpiexec ends the others a moment later.

mpiexec's own word on this ("BAD TERMINATION ... PID ... EXIT CODE") is no help: of ranks that end
at nearly the same time it names any. So the processes are watched, by a thread that sleeps.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import threading
import time
from pathlib import Path

import psutil

# linux/pidfd.h: what ioctl(descriptor, PIDFD_GET_INFO) tells, from Linux 6.15 on also the status
# of a process that ended and was waited for. struct pidfd_info: mask, ..., exit_code.
INFO, ENDED = struct.Struct("=Q 52x i"), 1 << 3
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11


def pipe(folder: str | Path, rank: int) -> Path:
    """The named pipe whose writing end an engine holds open as long as it lives."""
    return Path(folder, f"alive_{rank}")


class Deaths:
    """Watches processes of this node until the first one has ended.

    Args:
        processes: By rank. Ranks on other nodes are left out: the controller hears of their ends.
        folder: For named pipes, which are there from now on for engines to open.

    Attributes:
        first: The rank that ended first; more than one where that can't be known.
        how: As "was killed by signal 9 (SIGKILL)"; "has ended" where that can't be known.
        happened: Set when the first has ended.
    """

    def __init__(self, processes: dict[int, psutil.Process], folder: Path):
        self.processes, self.folder = processes, folder
        self.first: list[int] = []
        self.how = "has ended"
        self.happened = threading.Event()
        self._ends: dict[int, int] = {}  # reading ends of pipes, by rank
        for rank in processes:
            with contextlib.suppress(FileExistsError, PermissionError):  # joined; no pipes there
                os.mkfifo(pipe(folder, rank), 0o600)
            with contextlib.suppress(FileNotFoundError):
                self._ends[rank] = os.open(pipe(folder, rank), os.O_RDONLY | os.O_NONBLOCK)

    def watch(self) -> None:
        """Begin, once the engines have opened their pipes."""
        threading.Thread(target=self._watch, name="deaths", daemon=True).start()

    def _watch(self) -> None:
        ranks, pids = {}, {}
        with contextlib.ExitStack() as at_end:
            for end in self._ends.values():
                at_end.callback(os.close, end)
            try:
                # Its list of events is in the order in which they happened, however late we look:
                # the end of the first and of those that mpiexec ends may be 1 ms apart. A process
                # closes its files, which mpiexec notices, a little before it counts as ended.
                queue = at_end.enter_context(select.epoll())
                for rank, process in self.processes.items():
                    pids[rank] = os.pidfd_open(process.pid)
                    at_end.callback(os.close, pids[rank])
                    for descriptor in (self._ends.get(rank), pids[rank]):
                        if descriptor is not None:
                            queue.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
                            ranks[descriptor] = rank
            except ProcessLookupError:
                return self._died([rank])
            except (AttributeError, OSError):  # not Linux, or one before 5.3
                return self._watch_by_asking(self.processes)
            if ranks:
                [(descriptor, _)] = queue.poll(maxevents=1)
                rank = ranks[descriptor]
                select.select([pids[rank]], [], [], 1.0)
                self._died([rank], exit_status(self.processes[rank].pid, pids[rank]))

    def _watch_by_asking(self, processes: dict[int, psutil.Process]) -> None:
        while not (dead := [k for k, process in processes.items() if not process.is_running()]):
            time.sleep(0.1)
        self._died(dead)

    def _died(self, ranks: list[int], status: int | None = None) -> None:
        self.first, self.how = ranks, "has ended" if status is None else describe(status)
        self.happened.set()


def exit_status(pid: int, descriptor: int) -> int | None:
    """The wait status of a process that has ended; None where that can't be known.

    A zombie has it in /proc, until its parent waits for it; from then on its descriptor has it.
    """
    import fcntl

    for _ in range(2):  # it may go from the one to the other between our looks
        try:
            # "pid (command) state ...", and the command may hold any character; it comes last
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[0] == "Z":
                return int(fields[-1])
        except OSError:
            pass
        try:
            info = fcntl.ioctl(descriptor, GET_INFO, INFO.pack(ENDED, 0))
        except OSError:  # an older Linux
            continue
        mask, status = INFO.unpack(info)
        if mask & ENDED:
            return status
    return None


def describe(status: int) -> str:
    """A wait status in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a real-time signal"
    return f"was killed by signal {-code} ({name})"
