"""Find out which engine's process ended first, and how; mpiexec ends the others a moment later.

mpiexec's own message ("BAD TERMINATION ... PID ... EXIT CODE") does not help: of ranks that end at
nearly the same time, it names any. So a sleeping thread watches the processes.
"""

import contextlib
import fcntl
import os
import select
import signal
import struct
import threading
import time
from pathlib import Path

import psutil

from .protocol import pipe

LOOK = 1.0  # seconds between two looks at the processes themselves
# linux/pidfd.h: the result of ioctl(descriptor, PIDFD_GET_INFO), from Linux 6.15 on also for a
# process that ended and was waited for. struct pidfd_info: mask, ..., exit_code.
INFO, ENDED = struct.Struct("=Q 52x i"), 1 << 3
GET_INFO = 3 << 30 | INFO.size << 16 | 0xFF << 8 | 11


class Deaths:
    """Watches processes of this node until the first one has ended.

    Ranks on other nodes are left out, because the controller notices their ends. `folder` has a
    named pipe of each engine, of which it holds the writing end.

    Attributes:
        first: The rank that ended first; several ranks if the first is unknown.
        how: For example "was killed by signal 9 (SIGKILL)"; "has ended" if it is unknown.
        happened: Event that is set when the first process has ended.
    """

    def __init__(self, processes: dict[int, psutil.Process], folder: Path):
        self.processes, self.folder = processes, folder
        self.first: list[int] = []
        self.how = "has ended"
        self.happened = threading.Event()
        self._ends: dict[int, int] = {}  # reading ends of pipes, by rank
        self._over, self._leave = os.pipe()  # the latter is closed to end the watch
        for rank in processes:
            with contextlib.suppress(FileNotFoundError):
                self._ends[rank] = os.open(pipe(folder, rank), os.O_RDONLY | os.O_NONBLOCK)
        threading.Thread(target=self._watch, name="deaths", daemon=True).start()

    def leave(self) -> None:
        """End the watch, if that has not happened; the processes are left as they are."""
        if self._leave is not None:
            os.close(self._leave)
            self._leave = None

    def _watch(self) -> None:
        with contextlib.ExitStack() as at_end:
            for end in (self._over, *self._ends.values()):
                at_end.callback(os.close, end)
            # epoll lists events in the order in which they happened, however late we look; the
            # first process and those that mpiexec ends may end only 1 ms apart. A process closes
            # its files, which mpiexec notices, shortly before it counts as ended.
            queue = at_end.enter_context(select.epoll())
            queue.register(self._over, select.EPOLLHUP)  # once the other end is closed
            ranks, handles = {self._over: None}, {}
            for rank, process in self.processes.items():
                with contextlib.suppress(AttributeError, OSError):  # older than Linux 5.3
                    handles[rank] = os.pidfd_open(process.pid)
                    at_end.callback(os.close, handles[rank])
                if rank in self._ends:
                    queue.register(self._ends[rank], select.EPOLLIN | select.EPOLLONESHOT)
                    ranks[self._ends[rank]] = rank
            while not self.first:
                # A child that an engine has forked keeps its pipe open, so we also look.
                ended = [ranks[descriptor] for descriptor, _ in queue.poll(LOOK, maxevents=1)]
                if ended == [None]:
                    return
                self.first = ended or [k for k, one in self.processes.items() if not lives(one)]
            if len(self.first) == 1:
                rank = self.first[0]
                status = exit_status(self.processes[rank].pid, handles.get(rank))
                self.how = self.how if status is None else describe(status)
            self.happened.set()


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def exit_status(pid: int, handle: int | None) -> int | None:
    """The wait status of a process that ends now, or has ended; None if it is unknown.

    It is in /proc while the process is a zombie, and from the parent's wait on in the handle.
    """
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        fields = None
        with contextlib.suppress(OSError):
            # "pid (command) state ... status"; the command may contain any character
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[0] == "Z":
                return int(fields[-1])
        with contextlib.suppress(OSError, TypeError):  # older than Linux 6.15
            mask, status = INFO.unpack(fcntl.ioctl(handle, GET_INFO, INFO.pack(ENDED, 0)))
            if mask & ENDED:
                return status
        if fields is None:
            return None
        time.sleep(0.001)
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
