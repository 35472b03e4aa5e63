"""A supervisor process per rank, so that mpiexec lets the other ranks continue if the rank dies.

mpiexec ends all ranks when one fails, which is right for most programs. For programs that tolerate
the loss of a rank, mpiexec starts one such process per rank, which starts the rank as its child and
runs until the run is over: when rank 0 has ended; or, if LEAST is above 0, when all ranks have, as
then any rank may be lost. It writes the rank's exit status into a folder (`launch.run_ranks`). Once
fewer than LEAST ranks can end well, the others have GRACE seconds more.

A rank is protected only after it has called `launch.can_be_lost`: if a rank fails before MPI has
started, the others would wait for it in MPI_Init for ever. Ranks on other nodes are not protected,
since the folder does not exist there.

    python -I -S rank_supervisor.py FOLDER RANKS LEAST command ...
"""

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
    up = folder / f"up-{rank}"
    process = subprocess.Popen(
        command, close_fds=False, env={**os.environ, "NUMBA_KERNELS_KEPT": str(up)}
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: process.send_signal(number))
    end = None
    while process.poll() is None:
        time.sleep(POLL)
        if end is None and is_over(folder, ranks, least):
            end = time.monotonic() + GRACE
        if end is not None and time.monotonic() > end:
            process.kill()
    status = process.returncode
    status = status if status >= 0 else 128 - status
    if not up.exists():
        if status and folder.is_dir():
            # For a rank that has not started MPI, mpiexec reacts only to death by a signal. The
            # first one counts; mpiexec ends the others.
            (folder / str(rank)).write_text(str(status))
            os.kill(os.getpid(), signal.SIGKILL)
        if not least:
            return status
    part = folder / f".{rank}"
    part.write_text(str(status))
    part.rename(folder / str(rank))
    end = None
    while not all((folder / str(other)).exists() for other in range(ranks)):
        time.sleep(POLL)
        if is_over(folder, ranks, least):
            end = end or time.monotonic() + GRACE + 5
            if time.monotonic() > end:
                break
    return 0


def is_over(folder: Path, ranks: int, least: int) -> bool:
    """Return whether the run has ended, whatever the ranks that are left do."""
    if not least:
        return (folder / "0").exists()
    ended = [folder / str(rank) for rank in range(ranks) if (folder / str(rank)).exists()]
    return sum(file.read_text() != "0" for file in ended) > ranks - least


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
