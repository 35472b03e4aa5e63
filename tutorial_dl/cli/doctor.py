"""`python -m tutorial_dl doctor`: checks that this machine can run ranks and clusters.

Each check ends within its time limit and says what it found; if something is missing, it says how
to fix it. A check that could hang, crash or initialise MPI runs in a separate process.
"""

from __future__ import annotations

import json as json_format
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata

from numba_kernels import launch

SECONDS = 90  # limit for checks that start processes; a first run compiles kernels
MEBIBYTE, GIBIBYTE = 2**20, 2**30

# (name in the report, names of the distributions that provide it)
PACKAGES = (
    ("numpy", ("numpy",)),
    ("numba", ("numba",)),
    ("mpi4py", ("mpi4py",)),
    ("keras", ("keras",)),
    ("tensorflow", ("tensorflow-cpu", "tensorflow")),
    ("ipyparallel", ("ipyparallel",)),
    ("jupyterlab", ("jupyterlab",)),
)


class Missing(Exception):
    """A failed check: the message says what is wrong, `remedy` what to do about it."""

    def __init__(self, what: str, remedy: str):
        super().__init__(what)
        self.remedy = remedy


@dataclass(frozen=True)
class Check:
    """One line of the report; `remedy` is empty if `ok`."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


# The checks: each returns what it found, or raises Missing ------------------------------------


def python() -> str:
    return f"{platform.python_version()} at {sys.executable}"


def package(name: str, installed_as: tuple[str, ...]) -> str:
    """Version of a package, from its metadata, because importing TensorFlow takes ten seconds.

    Args:
        name: name in the report.
        installed_as: names of the distributions that may provide it.

    Raises:
        Missing: if none of them is installed.
    """
    for distribution in installed_as:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    raise Missing("not installed", f"pip install {installed_as[0]}, or make install")


def mpi() -> str:
    try:
        library = launch.mpi_library()
    except launch.LaunchError as error:
        raise Missing(error.problem, error.remedy) from None
    return f"{library.name} {library.version} at {library.path}"


def mpiexec() -> str:
    try:
        return f"{launch.find_mpiexec()}, which belongs to the MPI library"
    except launch.LaunchError as error:
        raise Missing(error.problem, error.remedy) from None


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
    except launch.LaunchError as error:
        raise Missing(f"not started: {error.problem}", error.remedy) from None
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


# The report ------------------------------------------------------------------------------------


def report() -> list[Check]:
    """Run all checks, one after the other: about 10 s, or 5 minutes if every check times out."""
    checks: list[tuple[str, Callable[[], str]]] = [("python", python)]
    checks += [(name, lambda n=name, d=names: package(n, d)) for name, names in PACKAGES]
    checks += [
        ("MPI", mpi),
        ("mpiexec", mpiexec),
        ("cores", cores),
        ("memory", memory),
        ("shared memory", shared_memory),
        ("windows", windows),
        ("kernel cache", kernel_cache),
        ("2 ranks", two_ranks),
        ("engine cluster", engines),
    ]
    return [_tried(name, check) for name, check in checks]


def _tried(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except Missing as missing:
        return Check(name, False, str(missing), missing.remedy)
    except subprocess.TimeoutExpired as error:
        return Check(
            name,
            False,
            f"no answer within {error.timeout:g} s",
            "try again when the machine is less busy",
        )


def main(json: bool = False) -> int:
    """Run the checks and print the report.

    Args:
        json: print the checks as JSON.

    Returns:
        The exit status: 0, or 1 if a check failed.
    """
    from rich.console import Console

    console = Console()
    if json or not console.is_terminal:
        checks = report()
    else:
        with console.status("checking ranks and engines, about 10 s"):
            checks = report()
    if json:
        print(json_format.dumps([asdict(check) for check in checks], indent=1))
    elif console.is_terminal:
        console.print(_table(checks))
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.found}")
            if check.remedy:
                print(f"      remedy: {check.remedy}")
    failed = [check.name for check in checks if not check.ok]
    if failed and not json:
        print(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
    return 1 if failed else 0


def _table(checks: list[Check]):
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False)
    for check in checks:
        found = Text(check.found)
        if check.remedy:
            found.append(f"\nremedy: {check.remedy}", style="bold")
        table.add_row(
            Text("ok", style="green") if check.ok else Text("FAIL", style="bold red"),
            check.name,
            found,
        )
    return table


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
