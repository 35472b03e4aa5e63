"""The cores that a process may use, and what the program that started it says about its rank.

Nothing here imports MPI or numpy, so a process can ask before it loads either: the number of
threads per rank must be set before numpy, Numba or TensorFlow is imported.
"""

import contextlib
import os
import re
from pathlib import Path

MOST_RANKS = 1024  # more on one node is probably a typing error
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, -(-int(quota) // int(period)))  # rounded up; ValueError for "max"
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
    is taken from the environment variables of mpiexec or srun.
    """
    threads = threads_per_rank(local_ranks() if ranks_on_node is None else ranks_on_node)
    os.environ.update(thread_environment(threads))
    return threads


def under_mpi() -> bool:
    """Return whether mpiexec, srun or aprun has started this process as one of its ranks.

    sbatch, `srun --pty` and JupyterHub's spawner also set SLURM_PROCID, for a single process that
    is not a rank. So a Slurm step counts only if it has more than one task.
    """
    of = os.environ
    if "MPI_LOCALNRANKS" in of or "OMPI_COMM_WORLD_SIZE" in of or "ALPS_APP_PE" in of:
        return True
    if "SLURM_PROCID" in of:
        return int(of.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    return "PMI_RANK" in of or "PMIX_RANK" in of


def rank() -> int:
    """Return this process's rank according to mpiexec or srun; 0 if neither has set it."""
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "ALPS_APP_PE")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def local_ranks() -> int:
    """Return the number of ranks on this node according to mpiexec or srun; 1 if not set."""
    of = os.environ
    for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"):
        if of.get(name, "").isdigit():
            return max(1, int(of[name]))
    tasks: list[int] = []  # per node; Slurm writes "2(x3),1" for 2, 2, 2, 1
    for part in of.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match:
            tasks += [int(match[1])] * int(match[2] or 1)
    node = int(of.get("SLURM_NODEID", "0") or 0)
    return max(1, tasks[node]) if node < len(tasks) else 1


def check_ranks(n: int) -> int:
    """Return `n` if it is a valid number of ranks; raise ValueError otherwise."""
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise ValueError(
            f"number of ranks must be a whole number from 1 to {MOST_RANKS}, got {n!r}"
        )
    if not 1 <= n <= MOST_RANKS:
        raise ValueError(f"number of ranks must be from 1 to {MOST_RANKS}, got {n}")
    return int(n)
