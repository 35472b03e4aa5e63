"""launch/fork_server.py: ranks that are forked from a process that has imported for all."""

import json
import sys
from pathlib import Path

import pytest

from numba_kernels import launch
from numba_kernels.launch import fork_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks as Linux does")

PRELOADED = """
import os
os.environ["PRELOADED_BY"] = str(os.getpid())
pid = os.getpid()
import numpy
"""
PROGRAM = """
import ctypes, glob, json, os, signal, sys, threading
what = sys.argv[1]
if what == "last":
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    MPI.COMM_WORLD.barrier()
    if rank == 1:
        if sys.argv[2] == "status":
            os._exit(7)
        os.kill(os.getppid() if sys.argv[2] == "server" else os.getpid(), signal.SIGKILL)
    MPI.COMM_WORLD.recv(source=1)
if what == "wait":
    print("waits", flush=True)
    signal.pause()
import numpy as np
from mpi4py import MPI
here = sys.modules.get("preloaded")
answer = {
    "forked": here is not None and here.pid == os.getppid() != os.getpid(),
    "argv": sys.argv[1:], "cwd": os.getcwd(), "own": os.environ.get("OWN"),
    "by": os.environ.get("PRELOADED_BY"), "sum": MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank),
    "draw": int(np.random.randint(1 << 31)), "session": os.getsid(0) == os.getpid(),
    "threads": os.environ["OPENBLAS_NUM_THREADS"],
}
for line in open("/proc/self/maps"):
    if "numpy.libs/libscipy_openblas64" in line:
        library = ctypes.CDLL(line.split()[-1])
        answer["blas"] = library.scipy_openblas_get_num_threads64_()
print(json.dumps(answer))
"""


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*words, n=2, env=(), **how):
        env = {"PYTHONPATH": f"{tmp_path}:{Path(launch.__file__).parents[2]}", **dict(env)}
        words = ["-m", "program", *words]
        how = {"preload": "preloaded", "capture": True, "timeout": 600} | how
        return launch.run_ranks(n, words, env=env, **how)

    run.folder = tmp_path
    return run


def test_forked_ranks_are_like_others(run):
    done = run("a", "b c", env={"OWN": "x", "OPENBLAS_NUM_THREADS": "3"}, n=3)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(rows), done.stderr) == (0, 3, "")
    for row in rows:
        assert row["forked"] and row["session"]
        assert row["by"] is None  # what the server's environment was changed to is not theirs
        assert (row["argv"], row["own"], row["sum"]) == (["a", "b c"], "x", 3)
        assert (row["cwd"], row["threads"], row.get("blas", 3)) == (str(Path.cwd()), "3", 3)
    assert len({row["draw"] for row in rows}) == 3


@pytest.mark.parametrize(
    "more", ["import threading, time\nthreading.Thread(target=time.sleep, args=(600,), "
             "daemon=True).start()", "raise RuntimeError('not here')", "import mpi4py.MPI"],
    ids=["thread", "error", "MPI"],
)  # fmt: skip
def test_where_forking_is_not_safe_ranks_start_as_usual(run, more):
    (run.folder / "preloaded.py").write_text(f"{PRELOADED}\n{more}\n")
    done = run("x")
    assert done.stderr == ""
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["forked"], row["sum"]) for row in rows] == [(False, 1)] * 2


@pytest.mark.parametrize("how", ["status", "signal", "server"])
def test_a_rank_that_ends_ends_all_with_its_status(run, how):
    forked = run("last", how)
    usual = run("last", how, preload=None) if how != "server" else None
    assert forked.returncode == (usual.returncode if usual else 137)
    assert forked.returncode != 0


def test_a_rank_may_be_lost_if_others_survive(run):
    (run.folder / "program.py").write_text(
        "import os, signal, sys\nfrom mpi4py import MPI\nfrom numba_kernels import launch\n"
        "assert 'preloaded' in sys.modules\nlaunch.can_be_lost()\nMPI.COMM_WORLD.barrier()\n"
        "if MPI.COMM_WORLD.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "print('left', flush=True)\nos._exit(0)\n"
    )
    done = run(survive=True)
    assert (done.returncode, done.stdout.split()) == (0, ["left"])


def test_signals_reach_ranks(run):
    with pytest.raises(Exception, match="2 ranks of python -m program wait") as raised:
        run("wait", timeout=2)
    assert raised.value.output.split() in (["waits"] * 2, ["waitswaits"])


def test_why_not_names_threads_and_gpu_drivers(monkeypatch):
    monkeypatch.setattr(fork_server.os, "listdir", lambda path: ["1", "2"])
    assert fork_server.why_not() == "2 threads"
