"""Ranks that may die: a supervisor process each, so that mpiexec does not end the others."""

from numba_kernels import launch


def test_one_that_dies_before_it_can_be_done_without():
    """All end, though those in MPI's own start can't be told."""
    code = """
import os
from numba_kernels import launch
if launch.rank() == 1:
    os._exit(3)
from mpi4py import MPI
"""
    done = launch.run_ranks(3, ["-c", code], timeout=600, capture=True, survive=True)
    assert done.returncode == 3, done.stderr


def test_one_that_dies_when_it_can_be_done_without():
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
