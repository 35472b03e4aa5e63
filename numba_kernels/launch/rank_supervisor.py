"""A supervisor process per rank, so that mpiexec lets the other ranks continue if the rank dies.

mpiexec ends all ranks when one fails, which is right for most programs. For programs that tolerate
the loss of a rank, mpiexec starts one such process per rank, which starts the rank as its child and
runs until the run is over: when rank 0 has ended; or, if LEAST is above 0, when all ranks have, as
then any rank may be lost. In a folder (`launch.run_ranks`) it makes a link with the rank's number,
which "points" to its exit status: that is done in one step, and needs no room on a full disk. Once
fewer than LEAST ranks can end well, the others have GRACE seconds more.

A rank is protected only after it has called `launch.can_be_lost`: if a rank fails before MPI has
started, the others would wait for it in MPI_Init for ever. Ranks on other nodes are not protected,
since the folder does not exist there.

    python -I -S rank_supervisor.py FOLDER RANKS LEAST command ...
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
POLL = 0.05  # seconds between checks
GRACE = 10.0  # seconds that other ranks have after rank 0 has ended


def main(folder: Path, ranks: int, least: int, command: list[str]) -> int:
    rank = next(int(os.environ[name]) for name in RANK_NAMES if name in os.environ)
    # The rank inherits mpiexec's file descriptors (close_fds=False), above all the connection to
    # the process manager.
    up, here, ends = folder / f"up-{rank}", folder.is_dir(), {}
    process = subprocess.Popen(
        command, close_fds=False, env={**os.environ, "NUMBA_KERNELS_KEPT": str(up)}
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: process.send_signal(number))
    end, protected = None, False
    while process.poll() is None:
        time.sleep(POLL)
        protected = protected or up.exists()
        if end is None and is_over(folder, ends, ranks, least):
            end = time.monotonic() + GRACE
        if end is not None and time.monotonic() > end:
            process.kill()
    status = process.returncode
    status = status if status >= 0 else 128 - status
    if not (protected or up.exists()):
        if status and here:
            # For a rank that has not started MPI, mpiexec reacts only to death by a signal. The
            # first one counts; mpiexec ends the others.
            with contextlib.suppress(OSError):
                (folder / str(rank)).symlink_to(str(status))
            os.kill(os.getpid(), signal.SIGKILL)
        if not least or not here:
            return status
    end = None
    while len(ends) < ranks:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may have been removed
            up.touch()
            (folder / str(rank)).symlink_to(str(status))
        if is_over(folder, ends, ranks, least) or not os.path.lexists(folder / str(rank)):
            end = end or time.monotonic() + GRACE + 5
            if time.monotonic() > end:
                return status
        time.sleep(POLL)
    return 0


def is_over(folder: Path, ends: dict[str, str], ranks: int, least: int) -> bool:
    """Return whether the run has ended, whatever the ranks that are left do.

    `ends` are exit statuses, by rank; those that the folder has in addition are added.
    """
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir(folder)):
            ends[name] = ends.get(name) or os.readlink(folder / name)
    return sum(end != "0" for end in ends.values()) > ranks - least if least else "0" in ends


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
