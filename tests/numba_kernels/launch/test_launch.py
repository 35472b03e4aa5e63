"""What happens before ranks start: finding mpiexec, sharing cores, detecting the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import either_mpi
import pytest

from numba_kernels import environment, launch, launcher
from numba_kernels.launch import mpiexec

SECONDS = 60


def python(code: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        **options,
    )


@pytest.fixture
def asked_anew():
    """Clear what launch has cached, before and after the test."""
    for function in (launch.mpi_library, mpiexec.mpiexec_family):
        function.cache_clear()
    yield
    for function in (launch.mpi_library, mpiexec.mpiexec_family):
        function.cache_clear()


def program(path: Path, prints: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return path


# Which mpiexec ---------------------------------------------------------------------------------


def test_mpiexec_is_that_of_the_mpi_library():
    done = launch.run_ranks(
        3,
        [
            "-c",
            "import sys; from mpi4py import MPI; right = sys.argv[1] in MPI.Get_library_version()\n"
            "print(f'{MPI.COMM_WORLD.size} {right}\\n', end='')",
            launch.mpi_library().version,
        ],
        timeout=SECONDS,
        capture=True,
    )
    # One world of three; with another MPI's mpiexec these are three worlds of one.
    assert done.stdout.splitlines() == ["3 True"] * 3
    assert Path(launch.mpi_library().path).exists()


def test_the_launcher_never_initialises_mpi():
    code = (
        "import sys; from numba_kernels import launch; launch.run_ranks(1, ['-c', 'pass'])"
        "; print([m for m in sys.modules if m.split('.')[0] in ('mpi4py', 'numpy', 'numba')])"
    )
    done = python(code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize(
    "version, family",
    [
        ("HYDRA build details:\n    Version: 4.3.0", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13", "MPICH"),
        ("mpiexec (OpenRTE) 4.1.4", "Open MPI"),
        ("mpirun (Open MPI) 5.0.5", "Open MPI"),
        ("prte (PRRTE) 3.0.6", "Open MPI"),
        ("usage: mpiexec", None),
    ],
)
def test_families(tmp_path, version, family):
    assert mpiexec.mpiexec_family(str(program(tmp_path / "mpiexec", version))) == family


def test_an_mpiexec_of_another_mpi_is_refused(tmp_path, monkeypatch):
    mine, theirs = either_mpi.mine(), either_mpi.theirs()
    monkeypatch.setenv("MPIEXEC", str(program(tmp_path / "mpiexec", either_mpi.SAYS[theirs])))
    with pytest.raises(
        launch.LaunchError, match=f"loads {mine} .* belongs to {theirs}: use the mpiexec of {mine}"
    ):
        launch.find_mpiexec()


def test_an_mpiexec_of_another_mpi_on_path_is_passed_over(tmp_path, monkeypatch):
    mine, theirs = either_mpi.mine(), either_mpi.theirs()
    program(tmp_path / "mpiexec", either_mpi.SAYS[theirs])
    right = launch.find_mpiexec()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # A system's library in /usr/lib/x86_64-linux-gnu has no bin folder beside it.
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none" / "python"))
    library = launch.mpi_library()._replace(path="/nowhere/lib/libmpi.so.12")
    monkeypatch.setattr(mpiexec, "mpi_library", lambda: library)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(right).parent}")
    assert launch.find_mpiexec() == right
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(launch.LaunchError, match=f"belongs to {theirs}"):
        launch.find_mpiexec()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(launch.LaunchError, match=f"there is no mpiexec: use the mpiexec of {mine}"):
        launch.find_mpiexec()


def test_mpiexec_that_is_no_program(monkeypatch):
    monkeypatch.setenv("MPIEXEC", "/no/such/mpiexec")
    with pytest.raises(launch.LaunchError, match="MPIEXEC=/no/such/mpiexec is not a program"):
        launch.find_mpiexec()


def test_no_mpi_library(monkeypatch, asked_anew):
    monkeypatch.setenv("MPI4PY_LIBMPI", "/no/such/libmpi.so")
    with pytest.raises(launch.LaunchError, match="cannot load an MPI library") as error:
        launch.find_mpiexec()
    assert "\n" not in str(error.value) and "tutorial-dl[mpich]" in str(error.value)


# Threads ---------------------------------------------------------------------------------------


def test_threads_share_the_cores(monkeypatch):
    monkeypatch.setattr(environment, "usable_cores", lambda: 8)
    assert [launch.threads_per_rank(n) for n in (1, 2, 3, 4, 8, 9)] == [8, 4, 2, 2, 1, 1]


def test_usable_cores_follow_the_affinity():
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{core}])\n"
        "from numba_kernels import launch; print(launch.usable_cores(), launch.threads_per_rank(1))"
    )
    assert python(code).stdout.split() == ["1", "1"]


def test_a_rank_gets_its_threads_and_the_users_stay(monkeypatch):
    for name in launch.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setattr(environment, "usable_cores", lambda: 6)
    code = f"import os; print(*[os.environ[n] for n in {launch.THREAD_VARIABLES}])"
    done = launch.run_ranks(2, ["-c", code], timeout=SECONDS, capture=True)
    assert done.stdout.splitlines() == ["5 3 3 3 3 3"] * 2


def test_set_threads_under_mpiexec():
    code = (
        "import os; os.environ.pop('OMP_NUM_THREADS')\n"
        "from numba_kernels import environment, launch\n"
        "environment.usable_cores = lambda: 6\n"
        "print(launch.set_threads(), os.environ['OMP_NUM_THREADS'])"
    )
    done = launch.run_ranks(2, ["-c", code], timeout=SECONDS, capture=True)
    assert done.stdout.splitlines() == ["3 3"] * 2


THREADS = """
import os
for name in {variables}:
    os.environ.pop(name, None)
os.environ.update({given})
import numpy as np
from threadpoolctl import threadpool_info
from numba_kernels import environment
environment.usable_cores = lambda: 6
from numba_kernels import Team
before = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
Team()
after = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
print(after[0] if after != before else "as before", os.environ.get("TF_NUM_INTRAOP_THREADS"))
"""


@pytest.mark.parametrize("given, line", [({}, "3 3"), ({"OMP_NUM_THREADS": "1"}, "as before None")])
def test_ranks_of_a_users_mpiexec_share_the_cores(given, line):
    """NumPy's BLAS has begun with its number of threads when the first Team is made."""
    code = THREADS.format(variables=launch.THREAD_VARIABLES, given=given)
    done = launch.run_ranks(2, ["-c", code], timeout=SECONDS, capture=True)
    assert done.stdout.splitlines() == [line] * 2, done.stderr


def test_a_process_of_its_own_keeps_all_cores():
    code = THREADS.format(variables=launch.THREAD_VARIABLES, given={})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "as before None\n", done.stderr


@pytest.mark.parametrize(
    "cores, each, threads",
    [(8, "8", 8), (4, "8", 4), (32, "8", 8), (32, "", 8)],
    ids=["bound to its own", "bound to half of them", "not bound", "no cores per task"],
)
def test_cores_to_which_srun_has_bound_a_rank_are_its_own(monkeypatch, cores, each, threads):
    for name in (*launcher.RANKS, *launcher.OF_MPIEXEC, *launch.THREAD_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    of_srun = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "4"}
    for name, value in (of_srun | {"SLURM_CPUS_PER_TASK": each}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(environment, "usable_cores", lambda: cores)
    monkeypatch.setattr(os, "environ", dict(os.environ))  # set_threads writes into it
    assert environment.set_threads() == threads


# The launcher ----------------------------------------------------------------------------------


def test_what_mpiexec_really_says():
    code = "from numba_kernels import launch as l; print(l.under_mpi(), l.local_ranks(), l.rank())"
    done = launch.run_ranks(3, ["-c", code], timeout=SECONDS, capture=True)
    assert sorted(done.stdout.splitlines()) == [f"True 3 {rank}" for rank in range(3)]


def test_a_rank_starts_no_ranks():
    code = "from numba_kernels import launch; launch.run_ranks(2, ['-c', 'pass'])"
    done = launch.run_ranks(1, ["-c", code], timeout=SECONDS, capture=True)
    assert done.returncode != 0 and "leave -n out" in done.stderr


def test_variables_of_a_slurm_job_without_srun_are_dropped(monkeypatch):
    # With these variables, mpiexec would call srun to start its ranks.
    monkeypatch.setenv("PATH", os.path.join(sys.prefix, "bin"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NODELIST", "elsewhere")
    monkeypatch.setenv("SLURM_NNODES", "1")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1")
    monkeypatch.setenv("PMI_SIZE", "9")
    done = launch.run_ranks(2, ["-c", "import os; print('SLURM_JOB_ID' in os.environ)"],
                            timeout=SECONDS, capture=True)  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()) == (0, ["False"] * 2), done.stderr
