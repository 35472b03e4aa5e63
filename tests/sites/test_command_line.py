"""srun starts the command line's ranks, by each launcher that a site may have."""

import os
import pwd
from pathlib import Path

import pytest
import slurm_site

SIZE = "from mpi4py import MPI; print(MPI.COMM_WORLD.size, MPI.Get_processor_name())"


def test_the_site_has_two_nodes_and_a_user_without_rights(slurm):
    done = slurm.run(["srun", "-N2", "-n2", "bash", "-c", "hostname; id -u; ls -A /dev/shm"])
    assert sorted(done.stdout.split()) == ["61000", "61000", "n1", "n2"], done.stderr
    assert slurm.run(["cat", "/etc/shadow"]).returncode == 1
    with pytest.raises(KeyError):  # the user exists in the site's namespace only
        pwd.getpwuid(slurm_site.UID)
    assert not Path(slurm.folder / "view").exists() or not os.listdir(slurm.folder / "view")


def test_pmi2_makes_one_world_over_two_nodes(slurm):
    done = slurm.run(["srun", "--mpi=pmi2", "-N2", "-n4", "python", "-c", SIZE])
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["4"] * 4, done.stderr
    assert {line.split()[1] for line in done.stdout.splitlines()} == {"n1", "n2"}


def test_mpiexec_in_an_allocation(slurm):
    done = slurm.run(["salloc", "-N2", "-n4", "mpiexec", "-n", "4", "python", "-c", SIZE])
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["4"] * 4, done.stderr
