"""Ranks that may die: each has a rank supervisor, so that mpiexec does not end the others."""

import errno
import os
from pathlib import Path

import pytest

from numba_kernels import launch
from numba_kernels.launch import rank_supervisor


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


FOLDERS = {  # what rank 1 does to the folder of the supervisors, or to its own
    "removed": "shutil.rmtree(os.path.dirname(os.environ['NUMBA_KERNELS_KEPT']))",
    "full": "resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, 0))",
}


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(("how", "status"), [("survive", 0), ("survive", 7), ("least", 0)])
def test_a_good_run_whose_folder_is_lost_ends_well(folder, how, status):
    code = f"""
import resource, shutil
from mpi4py import MPI
launch.can_be_lost()
MPI.COMM_WORLD.Barrier()
if launch.rank() == 1:
    time.sleep(0.5)  # the supervisor has seen that this rank may be lost
    {FOLDERS[folder]}
    os._exit({status})
time.sleep(1.5)
print("trained", flush=True)
os._exit(0)
"""
    done = ends(code, n=2, **({"least": 2} if how == "least" else {"survive": True}))
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_a_look_at_who_has_ended_reads_nothing_twice(tmp_path, monkeypatch):
    """There is a supervisor for each rank, and each of them looks 20 times a second."""
    for rank in range(3):
        (tmp_path / str(rank)).symlink_to("1" if rank == 2 else "0")
    known = {}
    assert not rank_supervisor.is_over(tmp_path, known, 4, 3)
    (tmp_path / "3").symlink_to("137")
    read, right = [], os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: read.append(path.name) or right(path))
    monkeypatch.setattr(Path, "exists", None)
    assert rank_supervisor.is_over(tmp_path, known, 4, 3) and read == ["3"]
    assert rank_supervisor.is_over(tmp_path, known, 4, 3) and read == ["3"]
    assert known == {"0": "0", "1": "0", "2": "1", "3": "137"}


@pytest.mark.parametrize("number", [0, errno.ENOSPC, errno.EEXIST])
def test_a_full_disk_keeps_no_rank_from_telling(tmp_path, monkeypatch, number):
    def touch(path, exist_ok):
        if number:
            raise OSError(number, "")

    monkeypatch.setenv("NUMBA_KERNELS_KEPT", str(tmp_path / "up-0"))
    monkeypatch.setattr(Path, "touch", touch)
    assert launch.is_first_to_tell() == (number != errno.EEXIST)


def test_the_number_of_ranks_that_must_be_left():
    for least in (0, 4):
        with pytest.raises(ValueError, match=f"least must be from 1 to .* 3, got {least}"):
            launch.run_ranks(3, ["-c", ""], least=least)
