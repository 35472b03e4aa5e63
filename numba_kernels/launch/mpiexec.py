"""Find out which MPI library mpi4py loads, and which mpiexec belongs to it.

An mpiexec of another MPI library starts n separate worlds of one rank each, without an error. MPI
is never initialised here: a separate process finds out what mpi4py would load.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..launcher import ALONE


class LaunchError(RuntimeError):
    """Ranks cannot be started here; the message is one line, "`problem`: `remedy`"."""

    def __init__(self, problem: str, remedy: str):
        super().__init__(f"{problem}: {remedy}")
        self.problem, self.remedy = problem, remedy


class Library(NamedTuple):
    """The MPI library that mpi4py loads: its name (such as "MPICH"), version and file."""

    name: str
    version: str
    path: str


# Libraries derived from MPICH share its ABI and its launcher (PMI, the Hydra mpiexec).
FAMILIES = {
    "MPICH": "MPICH",
    "CRAY MPICH": "MPICH",
    "MVAPICH": "MPICH",
    "Intel(R) MPI Library": "MPICH",
    "Open MPI": "Open MPI",
}

# Loads MPI without initialising it, and asks the dynamic linker where its functions come from.
ASK_MPI4PY = """
import ctypes, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
class Dl_info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
function = ctypes.cast(ctypes.CDLL(MPI.__file__).MPI_Init, ctypes.c_void_p)
info = Dl_info()
ctypes.CDLL(None).dladdr(function, ctypes.byref(info))
print((info.file or b"").decode())
print(MPI.Get_library_version())
"""


@functools.cache
def mpi_library() -> Library:
    """Return the MPI library that mpi4py loads here; raise LaunchError if it finds none."""
    answer = subprocess.run(
        [sys.executable, "-c", ASK_MPI4PY],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment_without_ranks(),
    )
    if answer.returncode != 0:
        why = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        raise LaunchError(
            f"mpi4py cannot load an MPI library ({why})",
            "pip install 'tutorial-dl[mpich]', or load the MPI module of your site",
        )
    path, _, text = answer.stdout.partition("\n")
    name = next((n for n in FAMILIES if text.upper().startswith(n.upper())), text.split(" v")[0])
    version = re.search(r"\d+\.\d+(\.\d+)?\w*|\d{4}\b[.\d]*", text)
    return Library(name.strip(), version.group() if version else "?", path)


@functools.cache
def mpiexec_family(mpiexec: str) -> str | None:
    """Return the MPI family of this mpiexec, "MPICH" or "Open MPI"; None if it is unknown."""
    try:
        answer = subprocess.run(
            [mpiexec, "--version"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=20,
            env=environment_without_ranks(),
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    if re.search(r"Open ?MPI|OpenRTE|prrte", answer, re.IGNORECASE):
        return "Open MPI"
    if re.search(r"HYDRA|MPICH|Intel\(R\) MPI", answer, re.IGNORECASE):
        return "MPICH"
    return None


def find_mpiexec() -> str:
    """Return the path of the mpiexec that belongs to the MPI library which mpi4py loads.

    If the environment variable MPIEXEC is set, it names the only candidate. Otherwise this searches
    beside the library, beside this Python, and along PATH, and skips those of other MPI libraries.
    LaunchError says that there is none.
    """
    library = mpi_library()
    family = FAMILIES.get(library.name, library.name)
    asked = os.environ.get("MPIEXEC")
    if asked:
        found = shutil.which(asked)
        if found is None:
            raise LaunchError(
                f"MPIEXEC={asked} is not a program", "set it to an mpiexec, or unset it"
            )
        candidates = [found]
    else:
        folders = [Path(library.path).parent.parent / "bin"] if library.path else []
        folders += [Path(sys.prefix, "bin"), Path(sys.executable).parent]
        folders += map(Path, filter(None, os.environ.get("PATH", "").split(os.pathsep)))
        names = ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi", "mpirun")
        candidates = [
            found
            for folder in dict.fromkeys(folders)
            for name in names
            if (found := shutil.which(name, path=str(folder)))
        ]
    for candidate in candidates:
        if mpiexec_family(candidate) == family:
            return candidate

    remedy = f"use the mpiexec of {family}"
    if family == "MPICH":
        remedy += "; pip install 'tutorial-dl[mpich]' installs one"
    loads = f"mpi4py loads {library.name} {library.version}"
    if not candidates:
        raise LaunchError(f"{loads}, but there is no mpiexec", remedy)
    what = mpiexec_family(candidates[0])
    belongs = f"belongs to {what}" if what else "belongs to an unknown MPI library"
    raise LaunchError(f"{loads}, but {candidates[0]} {belongs}", remedy)


# Variables by which mpiexec, srun and aprun identify a rank. A program that starts ranks itself
# must not pass them on: its ranks would act as ranks of the outer run.
OF_A_RANK = re.compile(
    r"(PMI|PMIX|OMPI_COMM_WORLD|MV2_COMM_WORLD|JSM_NAMESPACE|MPI_LOCAL|HYDI|ALPS_APP|PALS)_?.*"
    r"|PRTE_(?!MCA_(?:rmaps|hwloc)_).*|MPI_UNIVERSE_SIZE|" + ALONE
)


def environment_without_ranks(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `env` (default: os.environ) without variables that identify a rank of an outer run.

    Where there is no srun, as in a notebook server's environment, SLURM_* are removed as well:
    mpiexec would try to use srun. In a step of a Slurm job, such as a terminal or a notebook, srun
    would wait for this step to end: it is told to share the step's cores and memory.
    """
    env = dict(os.environ if env is None else env)
    drop = [name for name in env if OF_A_RANK.fullmatch(name)]
    if shutil.which("srun", path=env.get("PATH")) is None:
        drop += [name for name in env if name.startswith("SLURM_")]
    if "SLURM_STEP_ID" in env:
        env |= {"SLURM_OVERLAP": "1", "SLURM_MEM_PER_NODE": "0"}  # as --overlap --mem=0
        drop += [name for name in ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU") if name in env]
        drop += [name for name in env if name.startswith("SLURM_CPU_BIND")]
    for name in set(drop):
        env.pop(name, None)
    return env
