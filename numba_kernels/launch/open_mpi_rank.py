"""Becomes a rank of Open MPI, which ends with its mpiexec and writes into our own pipes.

    mpiexec -n 4 python -I -S open_mpi_rank.py FOLDER command ...

FOLDER has the named pipes "out" and "err", from which the launcher reads (ranks.py). On another
node it does not exist, and mpiexec forwards the output; so it does if FOLDER is "".
"""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    folder, *command = sys.argv[1:]
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended already
            os.kill(os.getpid(), signal.SIGKILL)
    for number, name in ((1, "out"), (2, "err")) if folder else ():
        with contextlib.suppress(OSError):
            # Without a reader, which has been killed then, this fails instead of waiting for one.
            pipe = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(pipe, True)
            os.dup2(pipe, number)
            os.close(pipe)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot start {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
