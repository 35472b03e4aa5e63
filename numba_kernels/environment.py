"""The cores that a process may use, and the threads that each rank should have.

Nothing here imports MPI or numpy, so a process can ask before it loads either: the number of
threads per rank must be set before numpy, Numba or TensorFlow is imported.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from .launcher import launched, local_ranks, under_mpi

MOST_RANKS = 1024  # more on one node is probably a typing error
MOST_PER_CORE = 8  # ranks that are of use; the notebooks start up to eight on two cores
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
GROUPS, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cgroups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroups, from its own to the outermost that is visible.

    `controller` is "cpu" or "memory", which version 1 of cgroups keeps apart.
    """
    with contextlib.suppress(OSError):
        for line in GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue  # version 2 has no names here
            root = MOUNTED / controller if controllers else MOUNTED
            inner = root / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and the quotas of its cgroups."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    for group in cgroups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            cores = min(cores, -(-int(quota) // int(period)))  # rounded up; ValueError for "max"
        with contextlib.suppress(OSError, ValueError):  # version 1
            quota = int((group / "cpu.cfs_quota_us").read_text())
            if quota > 0:
                period = int((group / "cpu.cfs_period_us").read_text())
                cores = min(cores, -(-quota // period))
    return max(1, cores)


def threads_per_rank(ranks_on_node: int) -> int:
    """Return the threads per rank with which `ranks_on_node` ranks together use all cores."""
    return max(1, usable_cores() // check_ranks(ranks_on_node))


def thread_environment(threads: int) -> dict[str, str]:
    """Return environment variables that limit libraries to `threads`; those set are kept."""
    return {name: os.environ.get(name, str(threads)) for name in THREAD_VARIABLES}


def set_threads(ranks_on_node: int | None = None) -> int:
    """Give this rank its share of the cores; return the number of threads per rank.

    Call it before importing numpy, numba or TensorFlow. By default the number of ranks on the node
    is taken from the environment variables of mpiexec or srun. Cores to which srun has bound this
    rank alone are its share.
    """
    if ranks_on_node is None:
        ranks_on_node = 1 if bound_by_srun() else local_ranks()
    threads = threads_per_rank(ranks_on_node)
    os.environ.update(thread_environment(threads))
    return threads


def bound_by_srun() -> bool:
    """Return whether srun has bound this rank to its own cores, as with --cpu-bind=cores."""
    found, each = launched(), os.environ.get("SLURM_CPUS_PER_TASK", "")
    return (
        found is not None
        and found.by == "srun"
        and each.isdigit()
        and hasattr(os, "sched_getaffinity")
        and len(os.sched_getaffinity(0)) <= int(each)
    )


def share_cores() -> None:
    """Give this rank its share of the cores if mpiexec or srun started it and nothing else does.

    Libraries that are loaded already (NumPy's BLAS, OpenMP) get it now, others when they are
    loaded. Without this, each of n ranks would compute on all cores, many times more slowly.
    Variables that are set (`OMP_NUM_THREADS` ...) decide instead, whatever they say.
    """
    if under_mpi() and not any(name in os.environ for name in THREAD_VARIABLES):
        import threadpoolctl

        threadpoolctl.threadpool_limits(set_threads())


def check_ranks(n: int) -> int:
    """Return `n` if it is a valid number of ranks; raise ValueError otherwise."""
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise ValueError(
            f"number of ranks must be a whole number from 1 to {MOST_RANKS}, got {n!r}"
        )
    if not 1 <= n <= MOST_RANKS:
        raise ValueError(f"number of ranks must be from 1 to {MOST_RANKS}, got {n}")
    return int(n)
