"""What MPI offers to others, and the settings by which it offers nothing."""

import os

import pytest

from numba_kernels import launch

SECONDS = 60
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
