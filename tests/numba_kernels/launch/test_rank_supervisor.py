"""Ranks that may die: each has a rank supervisor, so that mpiexec does not end the others."""

import pytest

from numba_kernels import launch


def ends(code: str, *words: str, n: int = 3, **how):
    """How `n` ranks end that run `code`."""
    code = f"import os, signal, sys, time\nfrom numba_kernels import launch\n{code}"
    return launch.run_ranks(n, ["-c", code, *words], timeout=600, capture=True, **how)


def test_a_rank_that_dies_before_it_may():
    """All ranks end; a letter could not reach ranks that are still in MPI's own start."""
    code = "if launch.rank() == 1: os._exit(3)\nfrom mpi4py import MPI"
    for how in ({"survive": True}, {"least": 3}):
        done = ends(code, **how)
        assert (done.returncode, done.failed) == (3, 1), done.stderr


def test_a_rank_that_dies_when_it_may():
    code = "if launch.rank() == 1: os._exit(3)\ntime.sleep(0.5)\nprint(launch.rank(), flush=True)"
    done = ends(f"launch.can_be_lost()\n{code}\nos._exit(0)", survive=True)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["0", "2"]


def test_any_rank_may_die():
    """The run succeeds if `least` ranks do; else it has the status of a rank that said why."""
    code = """
launch.can_be_lost()
status = int(sys.argv[1].split(",")[launch.rank()])
if status == 9:
    os.kill(os.getpid(), signal.SIGKILL)
if status == 99:
    time.sleep(10000)
os._exit(status)
"""
    for how, least, status in (("9,0,0", 2, 0), ("9,3,0", 2, 3), ("9,9,0", 2, 137)):
        done = ends(code, how, least=least)
        assert done.returncode == status and done.failed in (0, 1), (how, done.stderr)
    # Too few are left: the rank that would sleep for ever is ended.
    done = ends(code, "1,99", n=2, least=2)
    assert done.returncode == 1, done.stderr


def test_the_number_of_ranks_that_must_be_left():
    for least in (0, 4):
        with pytest.raises(ValueError, match=f"least must be from 1 to .* 3, got {least}"):
            launch.run_ranks(3, ["-c", ""], least=least)
