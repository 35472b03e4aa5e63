"""What mpiexec, srun or aprun says about this process: whether it is a rank, and one of how many.

Nothing here imports MPI or numpy, so a process can ask before it loads either.

A launcher that does not belong to the MPI library starts n processes, each of which is "rank 0 of
1": they would all do the same work, without a word. `never_alone` stops them. Variables of a batch
job alone are no mistake: a shell of salloc, the script of sbatch, a terminal (srun --pty) and a
notebook in a job have them, too, and are one process that may start ranks itself.
"""

import os
import re
import sys
from typing import NamedTuple

ALONE = "NUMBA_KERNELS_ALONE"  # "1": every process that a launcher starts works for itself


class Launched(NamedTuple):
    """The launcher that started this process, how many it started, and which of them this is."""

    by: str
    ranks: int
    rank: int
    counted: bool = True  # False: the launcher says no number; `ranks` is the least it can be


# Variables with the number of ranks and with this one's. All but the last are of the launcher that
# started this very process; the last may be those of an outer job step.
COUNTS = (
    ("mpiexec of Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpirun_rsh", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("mpiexec", "PMI_SIZE", "PMI_RANK"),
)
# Set by MPICH's two mpiexec, Hydra and gforker, and not by srun, which sets PMI_SIZE as well.
OF_MPIEXEC = ("MPI_LOCALNRANKS", "MPI_UNIVERSE_SIZE")
# MPI libraries, as they name themselves, and the protocols (PMI) by which their ranks find each
# other under srun: srun's names, the best first.
PROTOCOLS = {
    "Open MPI": ("pmix", "pmi2"),
    "Cray MPICH": ("cray_shasta", "pmi2"),
    "MVAPICH": ("pmi2",),
    "Intel(R) MPI": ("pmi2",),
    "MPICH": ("pmi2",),
}
RANKS_ONLY = (
    ("aprun", "ALPS_APP_PE"),
    ("mpiexec", "PALS_RANKID"),
    ("mpiexec", "PMI_RANK"),
    ("prun", "PMIX_RANK"),
)
# All variables that hold a rank; Slurm's comes last, as it may be that of an outer job step.
RANKS = (*(rank for _, _, rank in COUNTS), *(name for _, name in RANKS_ONLY), "SLURM_PROCID")


def launched() -> Launched | None:
    """Return what the innermost launcher says; None if this process is none of its ranks."""
    of = os.environ
    if of.get(ALONE) == "1":
        return None
    mpiexec = any(name in of for name in OF_MPIEXEC)
    in_job = "SLURM_PROCID" in of and not mpiexec
    for by, size, rank in COUNTS[:-1] if in_job else COUNTS:
        if of.get(size, "").isdigit() and rank in of:
            return Launched(by, int(of[size]), _number(rank))
    if in_job:
        # sbatch, `srun --pty` and JupyterHub's spawner also set SLURM_PROCID, for one process.
        tasks = _number("SLURM_STEP_NUM_TASKS", 1)
        if tasks == 1 or ("SLURM_PTY_PORT" in of and has_terminal()):
            return None
        return Launched("srun", tasks, _number("SLURM_PROCID"))
    for by, name in RANKS_ONLY:
        if name in of:
            return Launched(by, 1 + _number(name), _number(name), counted=False)
    return None


def _number(name: str, otherwise: int = 0) -> int:
    said = os.environ.get(name, "")
    return int(said) if said.isdigit() else otherwise


def has_terminal() -> bool:
    """Return whether a terminal controls this process, as it does all in a shell of srun --pty.

    In that shell, srun starts tasks that have the shell's variables but no terminal.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def under_mpi() -> bool:
    """Return whether mpiexec, srun or aprun has started this process as one of its ranks."""
    return launched() is not None


def rank() -> int:
    """Return this process's rank according to mpiexec or srun; 0 if neither has set it."""
    found = launched()
    return 0 if found is None else found.rank


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


def family_of(library: str) -> str | None:
    """Return the key of PROTOCOLS for an MPI library's name or version text; None if unknown."""
    return next((name for name in PROTOCOLS if name.lower() in library.lower()), None)


def alone(library: str) -> str | None:
    """Return what is wrong if this process is one of several, but MPI's world has one rank.

    Args:
        library: the text of MPI.Get_library_version().
    """
    found = launched()
    if found is None or found.ranks < 2:
        return None
    family = family_of(library) or "MPICH"
    version = re.search(r"\d+\.\d+[.\w]*", library)
    loads = f"{family} {version.group()}" if version else family
    if found.by == "srun":
        remedy = f"use `srun --mpi={PROTOCOLS[family][0]}`, or mpiexec in the job"
    elif found.by.startswith("mpiexec"):
        own = os.path.join(sys.prefix, "bin", "mpiexec")
        remedy = f"use the mpiexec of {family}"
        if family == "MPICH" and os.path.exists(own):
            remedy += f", {own}"
    else:
        remedy = f"use the launcher that belongs to {family}"
    count = f"{found.ranks} processes" if found.counted else f"at least {found.ranks} processes"
    return (
        f"{found.by} started {count}, but each is alone in its MPI world ({loads}): {remedy}; "
        f"{ALONE}=1 lets every process work alone"
    )


def never_alone(library: str) -> None:
    """End this process with status 2 if `alone`; one of those started says why, in one line."""
    problem = alone(library)
    if problem is not None:
        found = launched()
        if found.rank == (0 if found.counted else 1) and sys.__stderr__ is not None:
            print(f"error: {problem}", file=sys.__stderr__, flush=True)
        sys.exit(2)
