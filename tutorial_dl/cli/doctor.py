"""What a machine needs to run ranks and clusters, tried out: `python -m tutorial_dl doctor`.

Each check ends within its time limit, says what it found, and if something is missing, how to mend
it. What could hang, crash or initialise MPI runs in a process of its own.
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

SECONDS = 90  # for whatever starts processes: a first run compiles
MEBIBYTE, GIBIBYTE = 2**20, 2**30

# (what it is called here, the names it is installed under)
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
    """What is wrong, and `remedy`: what to do about it."""

    def __init__(self, what: str, remedy: str):
        super().__init__(what)
        self.remedy = remedy


@dataclass(frozen=True)
class Check:
    """One line of the report; `remedy` is empty where `ok`."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


# The checks: each returns what it found, or raises Missing ------------------------------------


def python() -> str:
    return f"{platform.python_version()} at {sys.executable}"


def package(name: str, installed_as: tuple[str, ...]) -> str:
    """Its version; asked from its metadata, as importing TensorFlow takes ten seconds."""
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
        return f"{launch.find_mpiexec()}, which belongs to it"
    except launch.LaunchError as error:
        raise Missing(error.problem, error.remedy) from None


def cores() -> str:
    shares = ", ".join(f"{n}: {launch.threads_per_rank(n)}" for n in (1, 2, 4))
    return f"{launch.usable_cores()} usable; threads a rank by ranks: {shares}"


def memory() -> str:
    import psutil

    free = psutil.virtual_memory().available
    if free < GIBIBYTE:
        raise Missing(
            f"{free / GIBIBYTE:.1f} GiB free",
            "end other programs or use fewer ranks: TensorFlow takes some 0.6 GiB a rank",
        )
    return f"{free / GIBIBYTE:.1f} GiB free"


def shared_memory(folder: str = "/dev/shm") -> str:
    """The folder that MPI keeps its segments in. (Windows of numba_kernels need no folder.)"""
    if not os.path.isdir(folder):
        return f"no {folder} on this system"
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if free < 32 * MEBIBYTE:
        raise Missing(
            f"{free / MEBIBYTE:.0f} MiB free in {folder}",
            f"remove abandoned files in {folder}; in a container, start it with --shm-size=1g",
        )
    return f"{free / GIBIBYTE:.1f} GiB free in {folder}"


def windows() -> str:
    """Can a process open memory that another one made, as the ranks of a node do?"""
    import mmap

    if not hasattr(os, "memfd_create"):
        raise Missing("no memfd on this system", "ranks send messages instead: use Linux for speed")
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
        raise Missing(f"cannot make shared memory: {error}", "free some memory") from None
    finally:
        os.close(descriptor)
    if done.returncode != 0 or seen != 7:
        raise Missing(
            f"a process cannot open another one's memory ({_last_line(done.stderr)})",
            "run both as the same user with /proc visible (in a container: no hidepid, same user)",
        )
    return "ranks of a node can share memory, without files"


def kernel_cache() -> str:
    """Where compiled kernels are kept; asked in a process of its own, which may import MPI."""
    code = (
        "import mpi4py; mpi4py.rc.initialize = False\n"
        "from numba_kernels.jit.compile import cache_folder; print(cache_folder())"
    )
    done = _python(code)
    if done.returncode != 0:
        found = _last_line(done.stderr).removeprefix("OSError: ")
        remedy = (
            "set NUMBA_CACHE_DIR to a folder that you may write to (each run compiles otherwise)"
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
    try:
        done = launch.run_ranks(2, ["-c", REDUCE], timeout=SECONDS, capture=True)
    except launch.LaunchError as error:
        raise Missing(f"not started, {error.problem}", error.remedy) from None
    except subprocess.TimeoutExpired:
        raise Missing(
            f"2 ranks did not reduce within {SECONDS} s",
            "check that this machine's own name resolves: getent hosts $(hostname)",
        ) from None
    if done.returncode != 0 or not done.stdout.startswith("1 + 2 = 3 on 2"):
        raise Missing(
            _last_line(done.stderr or done.stdout),
            "mpiexec and mpi4py must be of the same MPI: see the two lines above",
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
            "mend what failed above first; then look at the log: cluster.start(n=2) shows its end",
        )
    return done.stdout.strip()


# The report ------------------------------------------------------------------------------------


def report() -> list[Check]:
    """Run all checks, one after the other; some 10 s, at most 5 minutes where all goes wrong."""
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
        return Check(name, False, f"no answer within {error.timeout:g} s", "is the machine busy?")


def main(json: bool = False) -> int:
    """Print the report; 0 if all is well, 1 if any check failed."""
    from rich.console import Console

    console = Console()
    if json or not console.is_terminal:
        checks = report()
    else:
        with console.status("trying out ranks and engines, some 10 s"):
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
