"""Keeper: holds a rank's place under mpiexec, so that the others can go on when the rank dies.

mpiexec ends all ranks when one ends badly, which is right for most programs. Those that can do
without a rank are started through this small process, one a rank: mpiexec sees it, and it lives
until rank 0 has ended. How each rank ended it writes into a folder (`launch.run_ranks`).

Until a rank says that it can be done without (`launch.can_be_lost`), nothing is held: where one
does not even begin, the others would wait for it in MPI's own start for ever. And nothing is held
on other nodes, which don't see the folder.

    python -I -S rank_supervisor.py FOLDER RANKS command ...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
POLL = 0.05  # seconds between looks
GRACE = 10.0  # seconds that others have when rank 0 has ended


def main(folder: Path, ranks: int, command: list[str]) -> int:
    rank = next(int(os.environ[name]) for name in RANK_NAMES if name in os.environ)
    # What mpiexec hands to its child is for the rank: its end of the process manager, above all.
    up = folder / f"up-{rank}"
    process = subprocess.Popen(
        command, close_fds=False, env={**os.environ, "NUMBA_KERNELS_KEPT": str(up)}
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: process.send_signal(number))
    leader_ended = None
    while process.poll() is None:
        time.sleep(POLL)
        if leader_ended is None and (folder / "0").exists():
            leader_ended = time.monotonic()
        if leader_ended is not None and time.monotonic() - leader_ended > GRACE:
            process.kill()
    status = process.returncode
    status = status if status >= 0 else 128 - status
    if not up.exists():
        if status and folder.is_dir():
            # mpiexec heeds signals only, of those that have not come to MPI's start.
            (folder / "0").write_text(str(status))
            os.kill(os.getpid(), signal.SIGKILL)
        return status
    part = folder / f".{rank}"
    part.write_text(str(status))
    part.rename(folder / str(rank))
    end = None
    while not all((folder / str(other)).exists() for other in range(ranks)):
        time.sleep(POLL)
        if (folder / "0").exists():
            end = end or time.monotonic() + GRACE + 5
            if time.monotonic() > end:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
