"""Ranks that may die: each has a rank supervisor, so that mpiexec does not end the others."""

import pytest

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


def test_any_rank_may_die():
    """The run succeeds if `least` ranks do; else it has the status of a rank that said why."""
    code = """
import os, signal, sys
from numba_kernels import launch
launch.can_be_lost()
ends = [int(word) for word in sys.argv[1].split(",")]
status = ends[launch.rank()]
if status == 9:
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(status)
"""
    for ends, least, status in (("9,0,0", 2, 0), ("9,3,0", 2, 3), ("9,9,0", 2, 137)):
        done = launch.run_ranks(3, ["-c", code, ends], timeout=600, capture=True, least=least)
        assert done.returncode == status, (ends, done.stderr)


def test_the_number_of_ranks_that_must_be_left():
    for least in (0, 4):
        with pytest.raises(ValueError, match=f"least must be from 1 to .* 3, got {least}"):
            launch.run_ranks(3, ["-c", ""], least=least)


def test_a_rank_is_ended_when_too_few_are_left():
    """Rank 1 would sleep for ever."""
    code = """
import os, time
from numba_kernels import launch
launch.can_be_lost()
if launch.rank() == 0:
    os._exit(1)
time.sleep(10000)
"""
    done = launch.run_ranks(2, ["-c", code], timeout=600, capture=True, least=2)
    assert done.returncode == 1, done.stderr
