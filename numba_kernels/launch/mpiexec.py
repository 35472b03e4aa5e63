"""Which MPI does mpi4py load, and which mpiexec belongs to it?

An mpiexec of another MPI starts N separate worlds of one rank each, and nobody complains. MPI is
never initialised here: what mpi4py would load is asked in a process of its own.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class LaunchError(RuntimeError):
    """Ranks cannot be started here: one line, "`problem`: `remedy`"."""

    def __init__(self, problem: str, remedy: str):
        super().__init__(f"{problem}: {remedy}")
        self.problem, self.remedy = problem, remedy


class Library(NamedTuple):
    """The MPI library that mpi4py loads: "MPICH" or "Open MPI" ..., its version and its file."""

    name: str
    version: str
    path: str


# MPICH's relatives share its ABI and its way of starting ranks (PMI, the Hydra mpiexec).
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
    """The MPI that `import mpi4py.MPI` loads here, found out without initialising it.

    Raises LaunchError where mpi4py finds none.
    """
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
    """Which MPI's ranks this mpiexec starts, "MPICH" or "Open MPI"; None if it does not say."""
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
    """Path of the mpiexec that belongs to the MPI which mpi4py loads.

    The environment variable MPIEXEC decides where it is set. Otherwise they are looked for beside
    the library, beside this Python, and along PATH; one of another MPI is passed over.
    Raises LaunchError if there is none that fits.
    """
    library = mpi_library()
    family = FAMILIES.get(library.name, library.name)
    asked = os.environ.get("MPIEXEC")
    if asked:
        found = shutil.which(asked)
        if found is None:
            raise LaunchError(f"MPIEXEC={asked} is not a program", "name one, or unset MPIEXEC")
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

    remedy = f"take the mpiexec of {family}"
    if family == "MPICH":
        remedy += "; pip install 'tutorial-dl[mpich]' brings one"
    loads = f"mpi4py loads {library.name} {library.version}"
    if not candidates:
        raise LaunchError(f"{loads}, but there is no mpiexec", remedy)
    what = mpiexec_family(candidates[0])
    belongs = f"belongs to {what}" if what else "does not say which MPI it belongs to"
    raise LaunchError(f"{loads}, but {candidates[0]} {belongs}", remedy)


# What mpiexec, srun and aprun tell a rank of itself. A program that starts ranks of its own must
# not hand these on: they would take themselves for ranks of the outer run.
OF_A_RANK = re.compile(r"(PMI|PMIX|OMPI_COMM_WORLD|MPI_LOCAL|HYDI|ALPS_APP)_?.*|PMIX_.*|PRTE_.*")


def environment_without_ranks(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """`env` (ours if None) without what an outer run said of its ranks.

    A notebook server started inside a Slurm job hands SLURM_* on to places without srun, where
    mpiexec would try to use it: then these go as well.
    """
    env = dict(os.environ if env is None else env)
    drop = [name for name in env if OF_A_RANK.fullmatch(name)]
    if shutil.which("srun", path=env.get("PATH")) is None:
        drop += [name for name in env if name.startswith("SLURM_")]
    for name in drop:
        del env[name]
    return env
