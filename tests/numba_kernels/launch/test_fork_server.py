"""launch/fork_server.py: ranks that are forked from a process that has imported for all."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from numba_kernels import launch
from numba_kernels.launch import fork_server, guard, ranks


@pytest.fixture(autouse=True)
def _of_mpich():
    if launch.is_open_mpi():
        pytest.skip("ranks of Open MPI are not forked")


PRELOADED = """
import os
os.environ["PRELOADED_BY"] = str(os.getpid())
pid = os.getpid()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the ranks have mpiexec's cores
import signal
signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # as SIGQUIT is in a shell's job in the background
import numpy.random
"""
PROGRAM = """
import ctypes, json, os, signal, sys
# Before MPI: files of the server, or of another rank
OPEN = {each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")}
OPEN -= {"0", "1", "2", os.environ["PMI_FD"]}
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
    from pathlib import Path
    from mpi4py import MPI
    def note(number, frame):
        Path(sys.argv[2], f"got-{MPI.COMM_WORLD.rank}").touch()
        sys.exit()
    signal.signal(signal.SIGINT, note)
    new = Path(sys.argv[2], "new" + os.environ["PMI_RANK"])
    new.write_text(str(os.getpid()))
    new.rename(Path(sys.argv[2], os.environ["PMI_RANK"]))
    while True:
        signal.pause()
import numpy as np
from mpi4py import MPI
here = sys.modules.get("preloaded")
answer = {
    "forked": b"fork_server" in open("/proc/self/cmdline", "rb").read(),
    "preloaded": here is not None and here.pid == os.getppid(),
    "argv": sys.argv[1:], "cwd": os.getcwd(), "own": os.environ.get("OWN"),
    "by": os.environ.get("PRELOADED_BY"), "sum": MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank),
    "draw": int(np.random.randint(1 << 31)), "session": os.getsid(0) == os.getpid(),
    "threads": os.environ["OPENBLAS_NUM_THREADS"], "umask": os.umask(0o77),
    "ignores": signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN,
    "cores": sorted(os.sched_getaffinity(0)), "open": len(set(os.listdir("/proc/self/fd")) & OPEN),
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
    os.umask(umask := os.umask(0))
    assert (done.returncode, len(rows), done.stderr) == (0, 3, "")
    for row in rows:
        assert row["forked"] and row["preloaded"] and row["session"]
        assert row["by"] is None  # what the server's environment was changed to is not theirs
        assert (row["argv"], row["own"], row["sum"]) == (["a", "b c"], "x", 3)
        assert (row["cwd"], row["threads"], row.get("blas", 3)) == (str(Path.cwd()), "3", 3)
        assert (row["umask"], row["open"]) == (umask, 0)
        assert row["cores"] == sorted(os.sched_getaffinity(0)) and not row["ignores"]
    assert len({row["draw"] for row in rows}) == 3


@pytest.mark.parametrize(
    "more", ["import threading, time\nthreading.Thread(target=time.sleep, args=(600,), "
             "daemon=True).start()", "raise RuntimeError('not here')", "import mpi4py.MPI"],
    ids=["thread", "error", "MPI"],
)  # fmt: skip
def test_where_forking_is_not_safe_ranks_start_as_usual(run, more):
    (run.folder / "preloaded.py").write_text(f"{PRELOADED}\n{more}\n")
    done = run("x")
    said = "each rank imports for itself, as preloaded failed: RuntimeError: not here\n"
    assert done.stderr == (said if "raise" in more else "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["forked"], row["sum"]) for row in rows] == [(False, 1)] * 2


@pytest.mark.parametrize("how, status", [("status", 7), ("signal", 9), ("server", 137)])
def test_a_rank_that_ends_ends_all_with_its_status(run, how, status):
    """The status is that of ranks started as usual, where mpiexec leaves out what it killed."""
    assert run("last", how).returncode == status


def test_a_rank_may_be_lost_if_others_survive(run):
    (run.folder / "program.py").write_text(
        "import os, signal, sys\nfrom mpi4py import MPI\nfrom numba_kernels import launch\n"
        "assert 'preloaded' in sys.modules\nlaunch.can_be_lost()\nMPI.COMM_WORLD.barrier()\n"
        "if MPI.COMM_WORLD.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "print('left', flush=True)\nos._exit(0)\n"
    )
    done = run(survive=True)
    assert (done.returncode, done.stdout.split()) == (0, ["left"])


@pytest.fixture
def waiting(run, tmp_path: Path):
    """A process whose two ranks wait, and all processes below it by what they are."""
    (tmp_path / "tmp").mkdir()
    code = (
        "from numba_kernels import launch\n"
        f"launch.run_ranks(2, ['-m', 'program', 'wait', {str(tmp_path)!r}], preload='preloaded')"
    )
    path = f"{tmp_path}:{Path(launch.__file__).parents[2]}"
    parent = psutil.Popen(
        [sys.executable, "-c", code],
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "tmp")},
    )
    before = guard.segments()
    while not all((tmp_path / rank).exists() for rank in "01"):
        assert parent.poll() is None
        time.sleep(0.02)
    ranks = [psutil.Process(int((tmp_path / rank).read_text())) for rank in "01"]
    below = parent.children(recursive=True)
    [guarding] = parent.children()
    [server] = guarding.children()
    [mpiexec] = set(server.children()) - set(ranks)
    client = mpiexec.children()[0].children()[1]
    yield {"parent": parent, "guard": guarding, "server": server, "mpiexec": mpiexec,
           "client": client, "rank": ranks[1], "all": [*below, parent]}  # fmt: skip
    for each in (*below, parent):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    parent.communicate()
    guard.remove_abandoned(before)  # if the guard was killed


@pytest.mark.thorough(but=["guard", "mpiexec"])
@pytest.mark.parametrize(
    "what", ["parent", "guard", "server", "mpiexec", "client", "rank", "guard client"]
)
def test_if_one_is_killed_all_end(waiting, what, tmp_path: Path):
    for each in what.split():
        waiting[each].suspend()  # so that none of them ends by itself before its kill
    for each in what.split():
        waiting[each].kill()
    _, alive = psutil.wait_procs(waiting["all"], timeout=600)
    assert not alive and not list((tmp_path / "tmp").glob("fork-*"))


def test_signals_reach_ranks(waiting, tmp_path: Path):
    waiting["parent"].send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(waiting["all"], timeout=600)
    assert not alive and len(list(tmp_path.glob("got-*"))) == 2
    assert not list((tmp_path / "tmp").iterdir())


def test_ranks_of_other_mpis_and_of_batch_jobs_start_as_usual(run, monkeypatch):
    monkeypatch.setattr(ranks, "mpi_library", lambda: launch.mpiexec.Library("Open MPI", "5", ""))
    assert not ranks.can_fork({})
    monkeypatch.undo()
    assert ranks.can_fork({}) and not ranks.can_fork({"SLURM_JOB_ID": "1"})
    rows = run("x", env={"PBS_JOBID": "1"}).stdout.splitlines()
    assert [json.loads(row)["forked"] for row in rows] == [False] * 2


def test_a_process_of_another_process_manager_becomes_its_rank(tmp_path: Path):
    """As under an srun or mpiexec without PMI_FD, or on a node where there is no server."""
    command = [sys.executable, "-I", "-S", str(ranks.FORKED), "hydra"]
    program = [sys.executable, "-c", "print('itself')"]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        for path, more in (("s", {"PMI_RANK": "0"}), ("none", {"PMI_FD": "2"})):
            done = subprocess.run(
                [*command, str(tmp_path / path), *program], stdout=PIPE, text=True, timeout=600,
                env={**os.environ, **more},
            )  # fmt: skip
            assert done.stdout == "itself\n"


def test_why_not_names_threads_mpi_and_gpu_drivers(monkeypatch):
    monkeypatch.setattr(fork_server.os, "listdir", lambda path: ["1", "2"])
    assert fork_server.why_not() == "2 threads"
    monkeypatch.setattr(fork_server.os, "listdir", lambda path: ["1"])
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    assert fork_server.why_not() == "MPI is loaded"
    monkeypatch.delitem(sys.modules, "mpi4py.MPI")
    for library, problem in (("libcuda.so.1", "a GPU's driver is loaded"), ("libc.so.6", "")):
        maps = io.StringIO(f"7f00-7f01 r-xp 00000000 00:00 1 /usr/lib/{library}\n")
        monkeypatch.setattr(fork_server, "open", lambda *_, maps=maps, **__: maps, raising=False)
        assert fork_server.why_not() == problem
