"""Imports a program's modules once, and forks the ranks of this machine from there.

    python -m numba_kernels.launch.fork_server MODULE FOLDER COMMAND ...

COMMAND is an mpiexec that starts forked_rank.py for every rank. While it does, this process imports
MODULE, which imports what all ranks will need. Then each forked_rank.py asks by FOLDER/socket for
its rank: a child of this process, with the files, the environment and the arguments that mpiexec
has given to forked_rank.py, which stands for the rank towards mpiexec. FOLDER is its owner's alone
(mode 0700).

A fork has one thread only, and locks that other threads held stay locked. So ranks are forked only
while this process has a single thread and has loaded neither MPI nor a GPU's driver; otherwise each
forked_rank.py becomes its rank in the usual way.

No rank outlives this process (PR_SET_PDEATHSIG), and none its forked_rank.py.

If mpiexec fails, this process ends with the status of the first rank that failed, or the number of
its signal, as mpiexec usually does. Here mpiexec's own would often be 9, because it has killed the
other ranks: Hydra leaves such a status out only if the rank's output has ended when it reaps the
rank, and it reaps forked_rank.py, whose rank still has the output open for a moment.
"""

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
from typing import NamedTuple

from .guard import PR_SET_PDEATHSIG, prctl

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LENGTH = 8  # bytes that hold the length of a request
BLAS = "OPENBLAS_NUM_THREADS"  # OpenBLAS starts threads when it is loaded


class Task(NamedTuple):
    """What forked_rank.py asks for: a Python module to run as a rank, and its surroundings."""

    argv: list[str]  # module, arguments...
    environment: dict[str, str]
    folder: str
    umask: int
    cores: list[int]
    ignored: list[int]  # signals
    numbers: list[int]  # of the file descriptors that come with it


def why_not() -> str:
    """Why this process must not be forked now; "" if it may be."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        return f"{len(threads)} threads"
    if "mpi4py.MPI" in sys.modules:
        return "MPI is loaded"
    with open("/proc/self/maps", errors="replace") as maps:
        return (
            "a GPU's driver is loaded"
            if re.search(r"/lib(cuda|amdhip64|hsa-)", maps.read())
            else ""
        )


def receive(connection: socket.socket) -> tuple[Task, list[int]]:
    """Read a request and its file descriptors; ValueError if the client has gone."""
    descriptors: array.array = array.array("i")
    data = b""
    while len(data) < LENGTH or len(data) < LENGTH + int(data[:LENGTH]):
        part, extra, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(16 * 4))
        for level, kind, content in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content)
        if not part:
            raise ValueError("the client has gone")
        data += part
    return Task(*json.loads(data[LENGTH:])), list(descriptors)


def become(task: Task, descriptors: list[int]) -> None:
    """In the child: take the surroundings that mpiexec has made for the rank."""
    os.setsid()  # as mpiexec does: Linux shares a busy machine between sessions
    high = [os.dup(each) for each in descriptors]  # out of the way of the numbers asked for
    while set(high) & set(task.numbers):
        high = [os.dup(each) for each in high]
    for one, number in zip(high, task.numbers, strict=True):
        os.dup2(one, number)
    for each in {*descriptors, *high} - set(task.numbers):
        with contextlib.suppress(OSError):
            os.close(each)
    os.environ.clear()
    os.environ.update(task.environment)
    os.umask(task.umask)
    # A shell's job in the background ignores SIGINT and SIGQUIT; mpiexec's processes do not.
    for number in signal.valid_signals():
        if number in task.ignored:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, task.cores)
    with contextlib.suppress(OSError):
        os.chdir(task.folder)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # Python's own generator does that by itself
        set_blas_threads(os.environ.get(BLAS) or os.environ.get("OMP_NUM_THREADS", ""))
    gc.enable()


def set_blas_threads(number: str) -> None:
    """Give the loaded copies of OpenBLAS the threads that they would have by themselves."""
    with open("/proc/self/maps", errors="replace") as maps:
        files = set(re.findall(r"(/\S*openblas\S*\.so\S*)$", maps.read(), re.MULTILINE))
    for library in map(ctypes.CDLL, files):
        for name in ("scipy_openblas", "openblas"):
            for suffix in ("64_", ""):
                call = getattr(library, f"{name}_set_num_threads{suffix}", None)
                if call is not None:
                    call(int(number) if number.isdigit() else len(os.sched_getaffinity(0)))


class Server:
    """Forks ranks, and tells each one's forked_rank.py how it ended."""

    def __init__(self, listener: socket.socket, command: list[str]):
        self.listener = listener
        self.failed: int | None = None  # how the first rank that failed ended
        self.received: list[int] = []
        self.process: subprocess.Popen | None = None
        for number in FORWARDED:
            signal.signal(number, self.forward)
        self.wake, self.wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.process = subprocess.Popen(command, preexec_fn=ends_with_parent)
        for number in list(self.received):
            self.process.send_signal(number)
        # Clients, by the pids of their ranks; None if the client has ended, and its rank will
        self.of: dict[int, socket.socket | None] = {}

    def forward(self, number: int, frame: object) -> None:
        self.received.append(number)
        if self.process is not None:
            self.process.send_signal(number)

    def serve(self, problem: str) -> tuple[Task, list[int]] | int:
        """Serve until COMMAND ends: its status. In a rank: what to run, with its files."""
        while True:
            while self.reap():
                pass
            if self.process.returncode is not None:
                return self.end()
            ready = select.poll()
            clients = {each.fileno(): pid for pid, each in self.of.items() if each is not None}
            for each in (self.wake, *clients, self.listener.fileno()):
                ready.register(each, select.POLLIN)
            for each, _ in ready.poll():
                if each == self.wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake, 4096)
                elif each in clients:  # clients send nothing more, so this one has ended
                    os.kill(clients[each], signal.SIGKILL)
                    self.of[clients[each]].close()
                    self.of[clients[each]] = None
                else:
                    asked = self.answer(self.listener.accept()[0], problem or why_not())
                    if asked is not None:
                        return asked

    def answer(self, connection: socket.socket, problem: str) -> tuple[Task, list[int]] | None:
        """Fork a rank; returns what to run in the rank, and None here."""
        try:
            task, descriptors = receive(connection)
        except (ValueError, OSError):
            connection.close()
            return None
        here = os.getpid()
        if problem:
            pid = 0
        elif (pid := os.fork()) == 0:
            ends_with_parent()
            if os.getppid() != here:  # it has ended already
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for number in (*FORWARDED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for each in (self.wake, self.wake_write):
                os.close(each)
            for each in (connection, self.listener, *filter(None, self.of.values())):
                each.close()
            self.process.returncode = 0  # it is no child of this process
            return task, descriptors
        for each in descriptors:
            os.close(each)
        try:
            if pid:
                held = os.pidfd_open(pid)
                socket.send_fds(connection, [b"%d\n" % pid], [held])
                os.close(held)
                self.of[pid] = connection
            else:
                connection.sendall(b"0\n")
                connection.close()
        except OSError:  # the client has gone: select will say so, too
            pass
        return None

    def reap(self, options: int = os.WNOHANG) -> bool:
        """Collect a child that has ended, and tell its client; False if none has."""
        try:
            pid, raw = os.waitpid(-1, options)
        except ChildProcessError:
            return False
        if pid == 0:
            return False
        if pid == self.process.pid:
            self.process.returncode = os.waitstatus_to_exitcode(raw)
            return True
        status = os.waitstatus_to_exitcode(raw)
        connection = self.of.pop(pid, None)
        # A rank without a client is killed here, which is no failure of its own.
        killed = connection is None and status == -signal.SIGKILL
        if status and not killed and self.failed is None:
            self.failed = status
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.sendall(b"%d\n" % status)
            connection.close()
        return True

    def end(self) -> int:
        """End the ranks that are left when COMMAND has ended; returns the exit status."""
        for pid, connection in list(self.of.items()):
            os.kill(pid, signal.SIGKILL)
            if connection is not None:
                connection.close()
            self.of[pid] = None
        while self.of and self.reap(0):
            pass
        status = self.process.returncode
        if status > 0 and self.failed is not None:
            return abs(self.failed)
        return status if status >= 0 else 128 - status


def ends_with_parent() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def preload(module: str) -> str:
    """Import the module; returns why no rank can be forked afterwards, or "". An error is told."""
    threads = os.environ.get(BLAS)
    os.environ[BLAS] = "1"
    gc.disable()
    try:
        importlib.import_module(module)
    except Exception as error:  # a rank will say where it is wrong, if it needs it
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"each rank imports for itself, as {module} failed: {why}", file=sys.stderr)
        return why
    finally:
        os.environ.pop(BLAS)
        if threads is not None:
            os.environ[BLAS] = threads
    gc.freeze()  # what all ranks share stays shared
    return ""


def main() -> None:
    module, folder, *command = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/socket")
    listener.listen(1024)
    server = Server(listener, command)
    found = server.serve(preload(module))
    if isinstance(found, int):
        sys.exit(found)
    task, descriptors = found
    become(task, descriptors)
    name, *arguments = task.argv
    sys.argv[:] = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
