"""Judge how many engines this machine can hold, by its cores and memory, before any is started.

The limits of a container or a batch job count: affinity, and the cgroups of this process.
"""

import contextlib
import os
import re

import psutil

from numba_kernels import environment
from numba_kernels.environment import MOST_PER_CORE

from ..words import counted
from .profile import Profile
from .registry import ClusterError

ENGINE = 0.1e9  # bytes of an engine with numpy and Numba: 82 to 89 MB of its own, a part of 50 MB
TENSORFLOW = 0.5e9  # bytes that TensorFlow adds to it: 0.3 GB, a part of 0.5 GB, and a model


def check(n: int, of: Profile, freed: float = 0.0) -> None:
    """Raise ClusterError, one line, if `n` engines of this profile are too many.

    Args:
        freed: Bytes that the cluster that is replaced will free.
    """
    cores, where = _cores(of)
    if cores is not None and n > MOST_PER_CORE * cores:
        many = f"{where} {counted(cores, 'core')}, so at most {MOST_PER_CORE * cores}"
        raise ClusterError(
            f"{n} engines are too many: {many} ({MOST_PER_CORE} per core); {_needs(n)}; {FORCE}"
        )
    if of.kind == "local":
        free = free_memory() + freed
        if n * ENGINE > free:
            raise ClusterError(
                f"{n} engines are too many: {_gigabytes(free)} of memory are free; {_needs(n)}; "
                f"{FORCE}"
            )


FORCE = "force=True (in a terminal --force) starts them all the same"


def _needs(n: int) -> str:
    more = _gigabytes(n * TENSORFLOW)
    return f"{n} idle engines need {_gigabytes(n * ENGINE)}, and {more} more with TensorFlow"


def _gigabytes(size: float) -> str:
    return f"{max(0.0, size) / 1e9:.1f} GB"


def _cores(of: Profile) -> tuple[int | None, str]:
    """The cores that engines of this profile share, and what has them; None if unknown."""
    if of.kind == "local":
        return environment.usable_cores(), "this machine has"
    if of.kind == "allocation":
        nodes = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")  # "4(x2),2" for 4, 4, 2
        parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in nodes.split(",")]
        if all(parts):
            return sum(int(part[1]) * int(part[2] or 1) for part in parts), "the job has"
    return None, ""


def free_memory() -> float:
    """Bytes that this process and its children may still use, by the machine and its cgroups."""
    free = psutil.virtual_memory().available
    for group in environment.cgroups("memory"):
        for most, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
        ):
            with contextlib.suppress(OSError, ValueError):  # ValueError for "max": no limit
                limit, taken = (int((group / name).read_text()) for name in (most, used))
                found = re.search(rf"^{cache} (\d+)$", (group / "memory.stat").read_text(), re.M)
                free = min(free, limit - taken + int(found[1] if found else 0))
    return free
