"""Which ranks of this machine have begun to make the world, when there is no mailbox yet.

MPI can't tell: the first call in which all ranks take part is the one that is waited for, and
messages on MPI.COMM_WORLD could be taken for the program's own. So a rank that begins opens a file
without a name in any folder (memfd), and /proc shows the files, variables and parents of a user's
processes to the others: ranks of one world have the variable of a rank, and below one launcher.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from ..errors import ranks_in_words
from ..launcher import RANKS, local_ranks
from .stall import GONE, LOOK, STOPPED, Watch, state

MARK = "numba_kernels-begins"


class Begun:
    """A context in which other ranks can see that this one makes the world."""

    def __enter__(self):
        with suppress(AttributeError, OSError):  # not Linux
            self.file = os.fdopen(os.memfd_create(MARK), "rb")
        return self

    def __exit__(self, *_):
        if hasattr(self, "file"):
            self.file.close()


def ranks_here() -> dict[int, tuple[int, bool]]:
    """Return {rank: (pid, whether it has begun)} of this world's ranks on this machine."""
    name = next((each for each in RANKS if each in os.environ), None)
    found: dict[int, tuple[int, bool]] = {}
    launcher = _launcher(os.getpid(), name)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc")) if name else ()):
        rank = _variable(pid, name)
        if rank is None or _launcher(pid, name) != launcher or state(pid) in GONE:
            continue
        begun = _has_mark(pid)
        if begun or not found.get(rank, (0, False))[1]:  # its supervisor has its variables, too
            found[rank] = pid, begun
    return found


def _variable(pid: int, name: str | None) -> int | None:
    with suppress(OSError, ValueError):  # it has ended, or is another user's
        for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            key, _, value = each.partition(b"=")
            if name is not None and key == name.encode():
                return int(value)
    return None


def _launcher(pid: int, name: str | None) -> int:
    """Return the first process above `pid` that is none of a rank's."""
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return 0
        pid = int(status.rpartition(")")[2].split()[1])
        if _variable(pid, name) is None:
            return pid
    return pid


def _has_mark(pid: int) -> bool:
    with suppress(OSError):
        for file in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{file}").startswith(f"/memfd:{MARK} "):
                    return True
    return False


class FirstWatch(Watch):
    """Watches the wait for all ranks to begin the world."""

    _here: tuple[float, dict] = (float("-inf"), {})  # when `here` looked, and what it saw

    def here(self) -> dict[int, tuple[int, bool]]:
        """Return `ranks_here()`, which reads a file per process, of at most LOOK seconds ago."""
        if time.monotonic() - self._here[0] > LOOK:
            self._here = time.monotonic(), ranks_here()
        return self._here[1]

    def look(self, waited: float) -> None:
        if waited <= self.tell_at or self.team.size == 1:
            return
        self.tell_at *= 2
        here, late = self.here(), self.unheard()
        first = min((rank for rank, (_, begun) in here.items() if begun), default=self.team.rank)
        if late and self.team.rank == first:
            self.late = late
            words = {"T": "stopped by a signal", "t": "in a debugger", "R": "computing"}
            said = dict.fromkeys(late, "") | {
                rank: f" (process {pid} is {words.get(state(pid), 'asleep')})"
                for rank, (pid, _) in here.items()
            }
            has = "has" if len(late) == 1 else "have"
            names = ranks_in_words(late, said.get)
            self.warn(f"{names} {has} not begun to make the team, for {waited:.0f} s")

    def unheard(self) -> list[int]:
        """Return the ranks that have not begun, of those on this machine."""
        found, size = self.here(), self.team.size
        here = range(size) if local_ranks() == size else found
        return sorted(rank for rank in here if not found.get(rank, (0, False))[1])

    def starts(self, rank: int) -> bool:
        pid, _ = self.here().get(rank, (None, False))
        return pid is not None and state(pid) not in (*GONE, *STOPPED)
