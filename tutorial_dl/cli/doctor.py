"""`python -m tutorial_dl doctor`: checks that this machine can run ranks and clusters.

Each check ends within its time limit and says what it found; if something is missing, it says how
to fix it. A check that could hang, crash or initialise MPI runs in a separate process.
"""

import json as json_format
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from importlib import metadata
from typing import NamedTuple

from numba_kernels import launch

SECONDS = 90  # limit for checks that start processes; a first run compiles kernels
MEBIBYTE, GIBIBYTE = 2**20, 2**30

PACKAGES = ("numpy", "numba", "mpi4py", "keras", "tensorflow", "ipyparallel", "jupyterlab")


class Missing(launch.LaunchError):
    """A failed check: the problem, and its remedy."""


class Warned(Missing):
    """Ranks and clusters work, but something should be changed."""


class Check(NamedTuple):
    """One line of the report; `remedy` is empty if all is well, and says more if it is `ok`."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


# The checks: each returns what it found, or raises a LaunchError.


def package(name: str) -> str:
    """Version of a package, from its metadata, because importing TensorFlow takes ten seconds."""
    distributions = ("tensorflow-cpu", "tensorflow") if name == "tensorflow" else (name,)
    for distribution in distributions:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    raise Missing("not installed", f"pip install {distributions[0]}, or make install")


def mpi() -> str:
    library = launch.mpi_library()
    return f"{library.name} {library.version} at {library.path}"


def cores() -> str:
    shares = ", ".join(f"{n}: {launch.threads_per_rank(n)}" for n in (1, 2, 4))
    return f"{launch.usable_cores()} usable; threads per rank, by number of ranks: {shares}"


def memory() -> str:
    import psutil

    free = psutil.virtual_memory().available
    if free < GIBIBYTE:
        raise Missing(
            f"{free / GIBIBYTE:.1f} GiB free",
            "close other programs or use fewer ranks: TensorFlow needs about 0.6 GiB per rank",
        )
    return f"{free / GIBIBYTE:.1f} GiB free"


def shared_memory(folder: str = "/dev/shm") -> str:
    """Space in the folder where MPI keeps its shared memory; numba_kernels does not use it."""
    if not os.path.isdir(folder):
        return f"no {folder} on this system"
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if free < 32 * MEBIBYTE:
        raise Missing(
            f"{free / MEBIBYTE:.0f} MiB free in {folder}",
            f"remove abandoned files in {folder}; start a container with --shm-size=1g",
        )
    return f"{free / GIBIBYTE:.1f} GiB free in {folder}"


def windows() -> str:
    """Whether a process can open the shared memory of another one, as the ranks of a node do."""
    import mmap

    if not hasattr(os, "memfd_create"):
        raise Missing(
            "no memfd on this system",
            "ranks will send messages instead, which is slower; use Linux to share memory",
        )
    size = 64 * MEBIBYTE  # more than a container's usual /dev/shm
    descriptor = os.memfd_create("doctor", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size) as memory:
            code = (
                f"import mmap, os; f = os.open('/proc/{os.getpid()}/fd/{descriptor}', os.O_RDWR)\n"
                f"mmap.mmap(f, {size})[{size - 1}] = 7"
            )
            done = _python(code, timeout=20)
            seen = memory[size - 1]
    except OSError as error:
        raise Missing(
            f"cannot make shared memory: {error}", "close other programs to free memory"
        ) from None
    finally:
        os.close(descriptor)
    if done.returncode != 0 or seen != 7:
        raise Missing(
            f"a process cannot open the memory of another process ({_last_line(done.stderr)})",
            "run all ranks as the same user, with /proc visible (in a container, without hidepid)",
        )
    return "the ranks of a node can share memory"


def kernel_cache() -> str:
    """The folder for compiled kernels, found in a separate process because that imports MPI."""
    code = (
        "import mpi4py; mpi4py.rc.initialize = False\n"
        "from numba_kernels.jit.compile import cache_folder; print(cache_folder())"
    )
    done = _python(code)
    if done.returncode != 0:
        found = _last_line(done.stderr).removeprefix("OSError: ")
        remedy = (
            "set NUMBA_CACHE_DIR to a folder that you can write to; otherwise each run compiles"
        )
        raise Missing(found, remedy if "cannot write" in found else "make install")
    return f"{done.stdout.strip()} is writable"


def notebooks_privacy() -> str:
    """Whether other users of this machine can read what a notebook's kernel publishes."""
    from . import kernel_ports

    others = kernel_ports.other_users()
    if not others:
        return "this machine has no other users"
    if kernel_ports.transport() == "ipc":
        return "notebooks' kernels use sockets in a private folder"
    names = ", ".join(others[:3]) + ", ..." * (len(others) > 3)
    raise Warned(
        f"other users of this machine ({names}) can read the ports of notebooks' kernels",
        'put c.KernelManager.transport = "ipc" into jupyter_server_config.py (docs/clusters.md)',
    )


REDUCE = """
import numpy as np
from mpi4py import MPI
from numba_kernels.team import Team
team = Team(MPI.COMM_WORLD)
x = team.empty(1000, np.float32)
x[:] = team.rank + 1
team.allreduce(x)
assert (x == 3).all(), x
if team.rank == 0:
    print(f"1 + 2 = {x[0]:g} on {team.size} ranks")
team.close()
"""


def two_ranks() -> str:
    """Start two ranks, and let them reduce a vector."""
    try:
        done = launch.run_ranks(2, ["-c", REDUCE], timeout=SECONDS, capture=True)
    except subprocess.TimeoutExpired:
        raise Missing(
            f"2 ranks did not reduce within {SECONDS} s",
            "check that the host name of this machine resolves: getent hosts $(hostname)",
        ) from None
    if done.returncode != 0 or not done.stdout.startswith("1 + 2 = 3 on 2"):
        raise Missing(
            _last_line(done.stderr or done.stdout),
            "mpiexec and mpi4py must use the same MPI: see the lines MPI and mpiexec",
        )
    return done.stdout.strip()


CLUSTER = """
import os, sys
from tutorial_dl import cluster
sys.stdout = sys.stderr
try:
    c = cluster.start(n=2, timeout=60)
except Exception as error:
    sys.exit(str(error))
c.client[:].execute("from mpi4py import MPI; n = MPI.COMM_WORLD.allreduce(1)", block=True)
n = c.client[:]["n"]
c.stop()
print(f"{len(n)} engines, and their allreduce of 1 is {n[0]}", file=sys.__stdout__)
"""


def engines() -> str:
    """Start a cluster of two engines, and let them reduce a number."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = _python(CLUSTER, timeout=SECONDS, IPYTHONDIR=folder)
        except subprocess.TimeoutExpired:
            raise Missing(
                f"2 engines did not answer within {SECONDS} s",
                "check that connections to 127.0.0.1 are allowed",
            ) from None
    if done.returncode != 0:
        raise Missing(
            " ".join(done.stderr.split("; the log ends with")[0].split()) or "no message",
            "fix the failures above first; then read the log that cluster.start(n=2) shows",
        )
    return done.stdout.strip()


def report() -> list[Check]:
    """Run all checks, one after the other: about 10 s, or 5 minutes if every check times out."""
    checks: dict[str, Callable[[], str]] = {
        "python": lambda: f"{platform.python_version()} at {sys.executable}",
        **{name: partial(package, name) for name in PACKAGES},
        "MPI": mpi,
        "mpiexec": lambda: f"{launch.find_mpiexec()}, which belongs to the MPI library",
        "cores": cores,
        "memory": memory,
        "shared memory": shared_memory,
        "windows": windows,
        "kernel cache": kernel_cache,
        "privacy": notebooks_privacy,
        "2 ranks": two_ranks,
        "engine cluster": engines,
    }
    return [tried(name, check) for name, check in checks.items()]


def tried(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except Warned as warning:
        return Check(name, True, warning.problem, warning.remedy)
    except launch.LaunchError as error:
        return Check(name, False, error.problem, error.remedy)
    except subprocess.TimeoutExpired as error:
        found = f"no answer within {error.timeout:g} s"
        return Check(name, False, found, "try again when the machine is less busy")


def main(json: bool = False) -> int:
    """Run the checks and print the report; the exit status is 1 if a check failed."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    with nullcontext() if json else console.status("checking ranks and engines, about 10 s"):
        checks = report()
    if json:
        print(json_format.dumps([check._asdict() for check in checks], indent=1))
    else:
        for check in checks:
            how = ("warn", "yellow") if check.remedy else ("ok  ", "green")
            shown = Text.assemble(how if check.ok else ("FAIL", "bold red"))
            shown.append(f"  {check.name}: {check.found}")
            if check.remedy:
                shown.append(f"\n      remedy: {check.remedy}", style="bold")
            console.print(shown, soft_wrap=True)
    failed = [check.name for check in checks if not check.ok]
    if failed and not json:
        print(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
    return 1 if failed else 0


def _python(code: str, timeout: float = SECONDS, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env=launch.environment_without_ranks() | variables,
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
