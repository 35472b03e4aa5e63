"""Ranks that may die: each has a rank supervisor, so that mpiexec does not end the others."""

from numba_kernels import launch


def test_a_rank_that_dies_before_it_may():
    """All ranks end; a letter could not reach ranks that are still in MPI's own start."""
    code = """
import os
from numba_kernels import launch
if launch.rank() == 1:
    os._exit(3)
from mpi4py import MPI
"""
    done = launch.run_ranks(3, ["-c", code], timeout=600, capture=True, survive=True)
    assert done.returncode == 3, done.stderr


def test_a_rank_that_dies_when_it_may():
    code = """
import os, time
from numba_kernels import launch
launch.can_be_lost()
if launch.rank() == 1:
    os._exit(3)
time.sleep(0.5)
print(launch.rank(), flush=True)
os._exit(0)
"""
    done = launch.run_ranks(3, ["-c", code], timeout=600, capture=True, survive=True)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["0", "2"]
