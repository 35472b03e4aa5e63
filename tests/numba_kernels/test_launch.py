"""Starting ranks: the right mpiexec, their share of the cores, and no rank left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from numba_kernels import guard, launch, mpiexec
from numba_kernels.banner import Banner

SECONDS = 60


@pytest.fixture(autouse=True)
def lines_stay_whole(monkeypatch):
    """With it, Python writes a line in pieces, and those of several ranks mix."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


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
    """What launch has found out is found out again, before and after."""
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


def test_it_is_the_mpiexec_of_the_library():
    done = launch.run_ranks(
        3,
        [
            "-c",
            "from mpi4py import MPI; library = MPI.Get_library_version().split()[2]\n"
            "print(f'{MPI.COMM_WORLD.size} {library}\\n', end='')",
        ],
        timeout=SECONDS,
        capture=True,
    )
    # One world of three; with another MPI's mpiexec these are three worlds of one.
    library = launch.mpi_library()
    assert done.stdout.splitlines() == [f"3 {library.version}"] * 3
    assert Path(library.path).exists()


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
    other = program(tmp_path / "mpiexec", "mpiexec (OpenRTE) 4.1.4")
    monkeypatch.setenv("MPIEXEC", str(other))
    with pytest.raises(
        launch.LaunchError, match=r"loads MPICH .* belongs to Open MPI: take the mpiexec of MPICH"
    ):
        launch.find_mpiexec()


def test_an_mpiexec_of_another_mpi_on_path_is_passed_over(tmp_path, monkeypatch):
    program(tmp_path / "mpiexec", "mpiexec (OpenRTE) 4.1.4")
    right = launch.find_mpiexec()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # As with a system's library in /usr/lib/x86_64-linux-gnu, beside which there is no bin.
    monkeypatch.setattr(launch.sys, "prefix", str(tmp_path / "none"))
    monkeypatch.setattr(launch.sys, "executable", str(tmp_path / "none" / "python"))
    library = launch.mpi_library()._replace(path="/nowhere/lib/libmpi.so.12")
    monkeypatch.setattr(mpiexec, "mpi_library", lambda: library)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(right).parent}")
    assert launch.find_mpiexec() == right
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(launch.LaunchError, match="belongs to Open MPI"):
        launch.find_mpiexec()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(launch.LaunchError, match=r"there is no mpiexec.*tutorial-dl\[mpich\]"):
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
    monkeypatch.setattr(launch, "usable_cores", lambda: 8)
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
    monkeypatch.setattr(launch, "usable_cores", lambda: 6)
    code = f"import os; print(*[os.environ[n] for n in {launch.THREAD_VARIABLES}])"
    done = launch.run_ranks(2, ["-c", code], timeout=SECONDS, capture=True)
    assert done.stdout.splitlines() == ["5 3 3 3 3 3"] * 2


def test_set_threads_under_mpiexec():
    code = (
        "import os; os.environ.pop('OMP_NUM_THREADS'); from numba_kernels import launch\n"
        "launch.usable_cores = lambda: 6\n"
        "print(launch.set_threads(), os.environ['OMP_NUM_THREADS'])"
    )
    done = launch.run_ranks(2, ["-c", code], timeout=SECONDS, capture=True)
    assert done.stdout.splitlines() == ["3 3"] * 2


# Who started us --------------------------------------------------------------------------------

OUTSIDE = {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize(
    "environment, under, ranks_here, rank",
    [
        ({}, False, 1, 0),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, True, 2, 1),
        (
            {
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            True,
            4,
            5,
        ),
        # srun with 7 tasks on 4 nodes; this is on the third
        (
            {
                "SLURM_PROCID": "4",
                "SLURM_STEP_NUM_TASKS": "7",
                "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
                "SLURM_NODEID": "3",
                "PMIX_RANK": "4",
            },
            True,
            1,
            4,
        ),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}, False, 1, 0),  # sbatch
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"}, False, 1, 0),  # hub
        ({"ALPS_APP_PE": "3"}, True, 1, 3),
    ],
)
def test_who_started_us(monkeypatch, environment, under, ranks_here, rank):
    monkeypatch.setattr(os, "environ", OUTSIDE | environment)
    assert (launch.under_mpi(), launch.local_ranks(), launch.rank()) == (under, ranks_here, rank)


def test_what_mpiexec_really_says():
    code = "from numba_kernels import launch as l; print(l.under_mpi(), l.local_ranks(), l.rank())"
    done = launch.run_ranks(3, ["-c", code], timeout=SECONDS, capture=True)
    assert sorted(done.stdout.splitlines()) == [f"True 3 {rank}" for rank in range(3)]


def test_a_rank_starts_no_ranks():
    code = "from numba_kernels import launch; launch.run_ranks(2, ['-c', 'pass'])"
    done = launch.run_ranks(1, ["-c", code], timeout=SECONDS, capture=True)
    assert done.returncode != 0 and "leave -n out" in done.stderr


def test_variables_of_a_slurm_job_without_srun_are_dropped(monkeypatch):
    # mpiexec would see a job of Slurm and call srun for its ranks.
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NODELIST", "elsewhere")
    monkeypatch.setenv("SLURM_NNODES", "1")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1")
    monkeypatch.setenv("PMI_SIZE", "9")
    done = launch.run_ranks(2, ["-c", "import os; print('SLURM_JOB_ID' in os.environ)"],
                            timeout=SECONDS, capture=True)  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()) == (0, ["False"] * 2), done.stderr


# Running ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, -1, 10**6, 2.5, "2", True, None])
def test_bad_numbers_of_ranks(n):
    with pytest.raises(ValueError, match=r"number of ranks is .* is right") as error:
        launch.run_ranks(n, ["-c", "pass"])
    assert "\n" not in str(error.value)


def test_status_output_and_environment():
    code = (
        "import os, sys; from mpi4py import MPI; rank = MPI.COMM_WORLD.rank\n"
        "print('out', rank, os.environ['GIVEN']); print('err', rank, file=sys.stderr)\n"
        "MPI.COMM_WORLD.Barrier(); MPI.Finalize(); sys.exit(7 if rank == 1 else 0)"
    )
    done = launch.run_ranks(2, ["-c", code], timeout=SECONDS, capture=True, env={"GIVEN": "x"})
    assert done.returncode == 7
    assert sorted(done.stdout.splitlines()) == ["out 0 x", "out 1 x"]
    assert sorted(done.stderr.splitlines()) == ["err 0", "err 1"]


def test_output_is_shown_as_it_comes():
    # A progress bar: no line end for a long time. What is shown must come long before the end.
    code = "import time; print('1/2\\r', end='', flush=True); time.sleep(3); print('2/2')"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from numba_kernels import launch; launch.run_ranks(1, ['-c', {code!r}])",
        ],
        stdout=subprocess.PIPE,
    )
    first = os.read(parent.stdout.fileno(), 100)
    came, rest = time.monotonic(), parent.stdout.read()
    assert (first, rest, parent.wait(SECONDS)) == (b"1/2\r", b"2/2\n", 0)
    assert time.monotonic() - came > 1.5


def test_a_killed_rank_ends_the_run_without_mpiexecs_remarks():
    code = (
        "import os, signal, sys, time; from mpi4py import MPI; MPI.COMM_WORLD.Barrier()\n"
        "print('=' * 83, 'mine', sep='\\n', flush=True); print('and mine', file=sys.stderr)\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "if MPI.COMM_WORLD.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(100)"
    )
    done = launch.run_ranks(2, ["-c", code], timeout=SECONDS, capture=True)
    assert done.returncode == 9
    assert done.stdout.split() == ["=" * 83, "mine"] * 2
    assert done.stderr.splitlines() == ["and mine"] * 2


BANNER = f"""
{"=" * 83}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 3520 RUNNING AT node
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{"=" * 83}
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
""".encode()


@pytest.mark.parametrize("size", [1, 2, 7, 83, 84, 85, 1000])
@pytest.mark.parametrize(
    "before, after",
    [
        (b"", b""),
        (b"a\n", b"b\n"),
        (b"= mine\n=\n", b"=====\nYOUR text\n"),
        (b"=" * 83 + b"\nmine\n", b"=" * 83 + b"\n"),
        (b"50%\r", b"[x] This is mine"),
    ],
)
def test_the_banner_goes_and_nothing_else(size, before, after):
    data = before + BANNER + after
    banner = Banner()
    shown = b"".join(banner.feed(data[i : i + size]) for i in range(0, len(data), size))
    shown += banner.feed(b"", last=True)
    # The empty line above the banner is mpiexec's too, but may have been shown already.
    assert shown in (before + after, before + b"\n" + after)


def test_unfinished_lines_do_not_wait():
    banner = Banner()
    assert banner.feed(b"12%\r") == b"12%\r"
    assert banner.feed(b"13%\r==") == b"13%\r=="
    assert banner.feed(b"\n==") == b"\n"  # may be a rule, so it waits
    assert banner.feed(b"= a\n[mpi") == b"=== a\n"
    assert banner.feed(b"", last=True) == b"[mpi"


def sleepers(tmp_path, heed: bool = True) -> list[str]:
    """Arguments of Python: a rank that writes its pid to a file and then sits there."""
    code = (
        "import os, pathlib, signal, sys, time; from mpi4py import MPI\n"
        f"for s in (2, 15):\n  {'pass' if heed else 'signal.signal(s, signal.SIG_IGN)'}\n"
        f"name = pathlib.Path({str(tmp_path)!r}, str(MPI.COMM_WORLD.rank))\n"
        "name.with_suffix('.new').write_text(str(os.getpid()))\n"
        "name.with_suffix('.new').rename(name)\n"
        "time.sleep(300)"
    )
    return ["-c", code]


def pids(tmp_path, ranks: int) -> list[psutil.Process]:
    deadline = time.monotonic() + SECONDS
    while True:
        files = [tmp_path / str(rank) for rank in range(ranks)]
        if all(file.exists() for file in files):
            return [psutil.Process(int(file.read_text())) for file in files]
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)


@pytest.mark.parametrize("heed", [True, False])
def test_a_timeout_ends_all_ranks(tmp_path, heed):
    with pytest.raises(subprocess.TimeoutExpired, match="2 ranks of python"):
        launch.run_ranks(2, sleepers(tmp_path, heed), timeout=3, capture=True, grace=1)
    for file in ("0", "1"):
        assert not psutil.pid_exists(int((tmp_path / file).read_text()))


def parent_of(tmp_path, ranks: int, heed: bool = True, grace: float = 2) -> subprocess.Popen:
    code = (
        "import sys; from numba_kernels import launch\n"
        f"launch.run_ranks({ranks}, {sleepers(tmp_path, heed)!r}, grace={grace})"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


def test_killing_the_parent_ends_the_ranks(tmp_path):
    parent = parent_of(tmp_path, 3)
    ranks = pids(tmp_path, 3)
    parent.kill()
    _, alive = psutil.wait_procs(ranks, timeout=10)
    parent.communicate()
    assert not alive


def test_killing_the_guard_ends_the_ranks(tmp_path):
    before = guard.segments()
    parent = parent_of(tmp_path, 2)
    ranks = pids(tmp_path, 2)
    [guarding] = psutil.Process(parent.pid).children()
    assert str(launch.GUARD) in guarding.cmdline()
    guarding.kill()
    _, alive = psutil.wait_procs(ranks, timeout=10)
    parent.communicate(timeout=SECONDS)
    assert not alive
    guard.remove_abandoned(before)  # which the guard had no time to do


@pytest.mark.parametrize(
    "number, status", [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_signals_reach_the_ranks_and_the_parent_ends_as_usual(tmp_path, number, status):
    parent = parent_of(tmp_path, 2)
    ranks = pids(tmp_path, 2)
    parent.send_signal(number)
    output, errors = parent.communicate(timeout=SECONDS)
    assert parent.returncode == status
    assert not any(rank.is_running() for rank in ranks)
    assert "BAD TERMINATION" not in output + errors and "Press Ctrl-C" not in output + errors


def test_a_second_ctrl_c_kills_ranks_that_do_not_heed_the_first(tmp_path):
    parent = parent_of(tmp_path, 2, heed=False, grace=2 * SECONDS)
    ranks = pids(tmp_path, 2)
    parent.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert all(rank.is_running() for rank in ranks)
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=SECONDS)
    assert not any(rank.is_running() for rank in ranks)


def test_what_a_rank_leaves_running_ends_with_the_run(tmp_path):
    # A daemon: a session of its own, and its parent is gone.
    code = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '300'], start_new_session=True,\n"
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); print(p.pid)"
    )
    done = launch.run_ranks(1, ["-c", code], timeout=SECONDS, capture=True)
    assert not psutil.pid_exists(int(done.stdout))


def test_shared_memory_of_killed_ranks_is_removed_and_of_living_ones_stays(tmp_path):
    parent = parent_of(tmp_path, 2)
    ranks = pids(tmp_path, 2)
    living = {m.path for m in ranks[0].memory_maps() if m.path.startswith("/dev/shm/mpich")}
    before = guard.segments()
    assert living and living <= before
    code = "import os; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); os._exit(3)"
    assert launch.run_ranks(2, ["-c", code], timeout=SECONDS).returncode == 3
    assert living <= guard.segments()
    parent.terminate()
    parent.communicate(timeout=SECONDS)
    assert not living & guard.segments()


def test_only_shared_memory_that_no_process_holds_is_removed(tmp_path, monkeypatch):
    import mmap

    monkeypatch.setattr(guard, "SHARED_MEMORY", str(tmp_path))
    for name in ("mpich_shm_mapped", "mpich_shm_open", "mpich_shm_older", "mpich_shm_left", "mine"):
        (tmp_path / name).write_bytes(bytes(mmap.PAGESIZE))
    # Python's own mmap keeps a descriptor open; MPI closes it.
    code = (
        "import ctypes, os, sys; c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p\n"
        "f = os.open(sys.argv[1], os.O_RDWR)\n"
        "c.mmap(None, ctypes.c_size_t(4096), 3, 1, f, ctypes.c_long(0)); os.close(f)\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with open(tmp_path / "mpich_shm_open"):
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "mpich_shm_mapped")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert holder.stdout.readline() == "ready\n"
        guard.remove_abandoned({str(tmp_path / "mpich_shm_older")})
        holder.communicate()
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"mpich_shm_mapped", "mpich_shm_open", "mpich_shm_older", "mine"}
