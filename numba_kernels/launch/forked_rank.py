"""Stands for a rank that a fork server has forked, towards the mpiexec that has started this.

    python -I -S forked_rank.py hydra|gforker SOCKET PYTHON -m MODULE ARGUMENT ...

It hands its files and environment to the server (fork_server.py), passes signals on to the rank,
and ends as the rank does. Without a server, or if that may not fork, it becomes the rank itself.
"""

import contextlib
import json
import os
import signal
import socket
import sys

PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGQUIT")
LENGTH = 8  # as in fork_server.py


def ask(mpiexec: str, path: str, argv: list[str]) -> tuple[socket.socket, int] | None:
    """A connection to the server and a descriptor of the rank; None if it forks none."""
    if not os.environ.get("PMI_FD", "").isdigit():  # the connection to MPICH's process manager
        return None
    numbers = [0, 1, 2, int(os.environ["PMI_FD"])]
    umask = os.umask(0o077)
    os.umask(umask)
    cores = sorted(os.sched_getaffinity(0))
    ignored = [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
    task = [argv, dict(os.environ), os.getcwd(), umask, cores, ignored, numbers]
    request = json.dumps(task).encode()
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        first = b"%*d" % (LENGTH, len(request))
        socket.send_fds(connection, [first], numbers)
        connection.sendall(request)
        _, descriptors, _, _ = socket.recv_fds(connection, 64, 1)
    except OSError:
        return None
    if not descriptors:
        return None
    # With Hydra, the connection ends with the rank, before this process. If Hydra has reaped a
    # process before it notices that end, it lets the other ranks wait for ever. It may then kill
    # this process, but the server knows how the rank has ended. gforker is the other way round: if
    # a connection ends before the process, it leaves the other ranks alone.
    if mpiexec == "hydra":
        os.close(numbers[3])
    return connection, descriptors[0]


def main(mpiexec: str, path: str, command: list[str]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, passed := [getattr(signal, n) for n in PASSED_ON])
    found = ask(mpiexec, path, command[2:])
    if found is None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
        os.execv(command[0], command)
    connection, rank = found

    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank, number)

    for number in passed:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
    text = b""
    with contextlib.suppress(OSError):
        text = connection.recv(64)
    if not text:  # the server was killed, and the rank with it
        pass_on(signal.SIGKILL, None)
        text = b"-9"
    status = int(text)
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL's cannot be set
            signal.signal(-status, signal.SIG_DFL)
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has written its own
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
