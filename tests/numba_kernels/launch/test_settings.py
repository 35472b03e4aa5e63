"""Settings of MPI: by which it offers nothing to others, and Open MPI starts ranks as MPICH does.

Open MPI is not needed here; `make test-all MPI=openmpi` has the rest.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from numba_kernels import launch
from numba_kernels.launch import open_mpi

SECONDS = 60
# Stands for Open MPI's mpiexec: at SIGTERM it kills its rank at once.
MPIEXEC = """
import os, signal, subprocess, sys
rank = subprocess.Popen(sys.argv[1:], env={**os.environ, "OMPI_COMM_WORLD_RANK": "0"})
signal.signal(signal.SIGTERM, lambda *_: (rank.kill(), sys.exit(99)))
sys.exit(rank.wait())
"""
RANK = """
import os, signal, sys, time
def end(number, frame):
    time.sleep(0.2)  # work that an mpiexec which hears of the signal would not let it do
    os.write(1, b"checkpoint written\\n")  # the signal may come while Python still prints
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
os.write(1, b"ready\\n")
time.sleep(300)
"""


def test_variables_of_mpirun_that_are_the_users_own_reach_ranks(monkeypatch):
    monkeypatch.setenv("PRTE_MCA_hwloc_default_binding_policy", "core")
    monkeypatch.setenv("PRTE_LAUNCHED", "1")
    found = launch.rank_environment(2)
    assert found["PRTE_MCA_hwloc_default_binding_policy"] == "core"
    assert "PRTE_LAUNCHED" not in found


def test_settings_leave_the_users_own():
    chosen = {"PRTE_MCA_hwloc_default_binding_policy": "core"}
    found = open_mpi.settings(chosen)
    assert not found.keys() & chosen.keys()
    assert found["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in found) == (os.geteuid() == 0)


@pytest.mark.parametrize("watched", [False, True])
def test_at_sigterm_a_rank_may_end_in_its_own_way(watched):
    other = subprocess.Popen(["sleep", "300"])
    guarded = launch.guarded(
        [sys.executable, "-c", MPIEXEC, sys.executable, "-c", RANK], other.pid, grace=SECONDS
    )
    guard = subprocess.Popen(guarded, stdout=subprocess.PIPE, text=True)
    try:
        assert guard.stdout.readline() == "ready\n"
        (other if watched else guard).terminate()
        other.wait() if watched else None
        said, _ = guard.communicate(timeout=SECONDS)
        # Two seconds at most, if what the guard watches has ended; they may be too few here.
        assert watched or said == "checkpoint written\n"
        assert watched or guard.returncode == 3
    finally:
        for process in (guard, other):
            process.kill()
            process.wait()


def test_a_rank_writes_into_our_pipes(tmp_path):
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    command = [*open_mpi.rank_prefix(tmp_path), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")  # on another node there is no pipe
    read = {}
    for name in ("out", "err"):
        os.mkfifo(tmp_path / name)
        read[name] = os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.stdout, done.stderr) == ("", "")
    for name, end in read.items():
        assert os.read(end, 100) == f"{name}\n".encode()
        os.close(end)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")  # nobody reads the pipes


def test_a_rank_ends_with_its_mpiexec():
    rank = [*open_mpi.rank_prefix(), sys.executable, "-c", "print('up', flush=True); input()"]
    code = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *rank], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout.readline() == b"up\n"
    parent.kill()
    assert select.select([parent.stdout], [], [], SECONDS)[0]
    assert parent.stdout.read() == b""  # the rank has closed it; its input is still open
    parent.communicate(timeout=SECONDS)


# What MPI offers to others ------------------------------------------------------------------------

SHOW = """
import os, psutil
from pathlib import Path
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.allreduce(bytes(100_000))
made = [line.split()[4] for line in Path("/proc/sysvipc/shm").open()].count(str(os.getpid()))
of_mpiexec = {c.laddr for c in psutil.Process().parent().net_connections("inet")}  # inherited
listens = {c.laddr for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"}
print(made, len(listens - of_mpiexec), flush=True)
comm.barrier()
"""


@pytest.mark.parametrize("job, usual", [({}, "^sysv,tcp"), ({"HYDRA_HOST_FILE": "f"}, "^sysv")])
def test_settings_by_where_ranks_run(job, usual):
    assert launch.privacy.settings(job)["UCX_TLS"] == usual
    assert launch.privacy.settings(job, here=True)["UCX_TLS"] == "^sysv,tcp"
    assert launch.privacy.settings(job, here=False)["UCX_TLS"] == "^sysv"
    assert "UCX_TLS" not in launch.privacy.settings(job | {"UCX_TLS": "all"})  # the user's own


@pytest.mark.parametrize("job", ["SLURM_JOB_ID", "PBS_JOBID", "PBS_NODEFILE", "LSB_JOBID"])
def test_in_a_job_ranks_may_run_on_other_nodes(job):
    assert launch.privacy.settings({job: "7"}) == {"UCX_TLS": "^sysv"}


@pytest.mark.skipif(not os.path.exists("/proc/sysvipc/shm"), reason="no System V shared memory")
def test_ranks_neither_listen_nor_share_memory_with_their_group():
    done = launch.run_ranks(2, ["-c", SHOW], timeout=SECONDS, capture=True)
    assert done.stdout.splitlines() == ["0 0"] * 2, done.stderr
    if launch.is_open_mpi():
        return  # between ranks of one machine it uses its own transports
    done = launch.run_ranks(2, ["-c", SHOW], env={"UCX_TLS": "all"}, timeout=SECONDS, capture=True)
    assert "0" not in done.stdout.split(), "UCX shares no such memory any more"
