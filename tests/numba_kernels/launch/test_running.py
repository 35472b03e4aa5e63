"""Ranks that run under `launch`: their output and status; no process is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from numba_kernels import launch
from numba_kernels.launch import guard

SECONDS = 60


@pytest.mark.parametrize("n", [0, -1, 10**6, 2.5, "2", True, None])
def test_bad_numbers_of_ranks(n):
    with pytest.raises(ValueError, match=r"number of ranks must be .*from 1 to .*, got") as error:
        launch.run_ranks(n, ["-c", "pass"])
    assert "\n" not in str(error.value)


def test_status_output_and_environment():
    code = (
        "import os, sys; from mpi4py import MPI; rank = MPI.COMM_WORLD.rank\n"
        "print('out', rank, os.environ['GIVEN']); print('err', rank, file=sys.stderr)\n"
        "MPI.COMM_WORLD.Barrier(); MPI.Finalize(); sys.exit(7 if rank == 1 else 0)"
    )
    done = launch.run_ranks(2, ["-c", code], timeout=SECONDS, capture=True, env={"GIVEN": "x"})
    assert done.returncode == 7
    assert sorted(done.stdout.splitlines()) == ["out 0 x", "out 1 x"]
    assert sorted(done.stderr.splitlines()) == ["err 0", "err 1"]


def test_output_is_shown_as_it_comes(tmp_path):
    # A progress bar writes no line end for long. Its output must appear long before the end.
    go_on = tmp_path / "go on"
    code = (
        "import os, time; print('1/2\\r', end='', flush=True); n = 0\n"
        f"while not os.path.exists({str(go_on)!r}) and n < 3000: time.sleep(0.1); n += 1\n"
        "print('2/2' if n < 3000 else 'nobody has seen it')"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from numba_kernels import launch; launch.run_ranks(1, ['-c', {code!r}])",
        ],
        stdout=subprocess.PIPE,
    )
    first = os.read(parent.stdout.fileno(), 100)
    go_on.touch()
    assert (first, parent.stdout.read(), parent.wait(SECONDS)) == (b"1/2\r", b"2/2\n", 0)


def test_a_killed_rank_ends_the_run_without_mpiexecs_remarks():
    code = (
        "import os, signal, sys, time; from mpi4py import MPI; MPI.COMM_WORLD.Barrier()\n"
        "print('=' * 83, 'mine', sep='\\n', flush=True); print('and mine', file=sys.stderr)\n"
        "MPI.COMM_WORLD.Barrier()\n"
        "if MPI.COMM_WORLD.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(100)"
    )
    done = launch.run_ranks(2, ["-c", code], timeout=SECONDS, capture=True)
    assert done.returncode in (9, 128 + 9)  # of MPICH, of Open MPI
    assert done.stdout.split() == ["=" * 83, "mine"] * 2
    assert done.stderr.splitlines() == ["and mine"] * 2


def sleepers(tmp_path, heed: bool = True) -> list[str]:
    """Arguments for Python: the rank writes its pid to a file and then sleeps."""
    code = (
        "import os, pathlib, signal, sys, time; from mpi4py import MPI\n"
        f"for s in (2, 15):\n  {'pass' if heed else 'signal.signal(s, signal.SIG_IGN)'}\n"
        f"name = pathlib.Path({str(tmp_path)!r}, str(MPI.COMM_WORLD.rank))\n"
        "name.with_suffix('.new').write_text(str(os.getpid()))\n"
        "name.with_suffix('.new').rename(name)\n"
        "time.sleep(300)"
    )
    return ["-c", code]


def pids(tmp_path, ranks: int) -> list[psutil.Process]:
    deadline = time.monotonic() + SECONDS
    while True:
        files = [tmp_path / str(rank) for rank in range(ranks)]
        if all(file.exists() for file in files):
            return [psutil.Process(int(file.read_text())) for file in files]
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)


@pytest.mark.parametrize("heed", [True, False])
def test_a_timeout_ends_all_ranks(tmp_path, heed):
    with pytest.raises(subprocess.TimeoutExpired, match="2 ranks of python"):
        launch.run_ranks(2, sleepers(tmp_path, heed), timeout=8, capture=True, grace=1)
    for file in ("0", "1"):
        assert not psutil.pid_exists(int((tmp_path / file).read_text()))


def parent_of(tmp_path, ranks: int, heed: bool = True, grace: float = 2) -> subprocess.Popen:
    code = (
        "import sys; from numba_kernels import launch\n"
        f"launch.run_ranks({ranks}, {sleepers(tmp_path, heed)!r}, grace={grace})"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


@pytest.mark.parametrize("killed", ["parent", "guard"])
def test_killing_the_parent_or_the_guard_ends_the_ranks(tmp_path, killed):
    before = guard.segments()
    parent = parent_of(tmp_path, 3)
    ranks = pids(tmp_path, 3)
    [guarding] = psutil.Process(parent.pid).children()
    assert str(launch.GUARD) in guarding.cmdline()
    (parent if killed == "parent" else guarding).kill()
    _, alive = psutil.wait_procs(ranks, timeout=SECONDS)
    parent.communicate(timeout=SECONDS)
    assert not alive
    guard.remove_abandoned(before)  # the guard was killed before it could


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_ranks_and_the_parent_ends_as_usual(tmp_path, number):
    parent = parent_of(tmp_path, 2)
    ranks = pids(tmp_path, 2)
    parent.send_signal(number)
    output, errors = parent.communicate(timeout=SECONDS)
    assert parent.returncode == -number
    assert not any(rank.is_running() for rank in ranks)
    assert "BAD TERMINATION" not in output + errors and "Press Ctrl-C" not in output + errors


def test_a_second_ctrl_c_kills_ranks_that_do_not_heed_the_first(tmp_path):
    parent = parent_of(tmp_path, 2, heed=False, grace=2 * SECONDS)
    ranks = pids(tmp_path, 2)
    parent.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert all(rank.is_running() for rank in ranks)
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=SECONDS)
    assert not any(rank.is_running() for rank in ranks)


def test_what_a_rank_leaves_running_ends_with_the_run(tmp_path):
    # A daemon: it has its own session, and its parent has ended.
    code = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '300'], start_new_session=True,\n"
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); print(p.pid)"
    )
    done = launch.run_ranks(1, ["-c", code], timeout=SECONDS, capture=True)
    assert not psutil.pid_exists(int(done.stdout))


def test_shared_memory_of_killed_ranks_is_removed_and_of_living_ones_stays(tmp_path):
    parent = parent_of(tmp_path, 2)
    ranks = pids(tmp_path, 2)
    living = {m.path for m in ranks[0].memory_maps() if m.path in guard.segments()}
    before = guard.segments()
    assert living and living <= before
    code = "import os; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); os._exit(3)"
    assert launch.run_ranks(2, ["-c", code], timeout=SECONDS).returncode == 3
    assert living <= guard.segments()
    parent.terminate()
    parent.communicate(timeout=SECONDS)
    assert not living & guard.segments()


def test_the_next_start_removes_what_a_killed_guard_left(tmp_path):
    before = guard.segments()
    parent = parent_of(tmp_path, 2)
    ranks = pids(tmp_path, 2)
    left = {m.path for m in ranks[0].memory_maps() if m.path in guard.segments()}
    assert left and not left & before
    every = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children(recursive=True)]
    for process in every:
        process.suspend()  # or they would end each other
    for process in every:
        process.kill()
    psutil.wait_procs(every[1:], timeout=SECONDS)
    parent.communicate(timeout=SECONDS)
    for path in left:  # as if it was a while ago; a guard of another test may have removed it
        Path(path).touch()
        os.utime(path, (1, 1))
    assert launch.run_ranks(1, ["-c", ""], timeout=SECONDS).returncode == 0
    assert not left & guard.segments()


def test_what_may_be_of_another_run_is_not_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # As there may be runs of other tests now
    monkeypatch.setattr(guard, "PROXIES", ("proxy_of_a_test",))
    names = ("mpich_shm_new", "mpich_shm_old", f"{guard.TOPOLOGY}new", f"{guard.TOPOLOGY}old")
    for name in names:
        (tmp_path / name).touch()
        # New: of a container, or another node, whose processes are not seen here
        made = 1 if name.endswith("old") else time.time() - 100
        os.utime(tmp_path / name, (made, made))
    proxy = tmp_path / "proxy_of_a_test"
    shutil.copy(shutil.which("sleep"), proxy)
    running = subprocess.Popen([proxy, "1000"])
    try:
        guard.sweep()
    finally:
        running.kill()
        running.wait()
    proxy.unlink()
    kept = {file.name for file in tmp_path.iterdir()}
    assert kept == {"mpich_shm_new", f"{guard.TOPOLOGY}new", f"{guard.TOPOLOGY}old"}
    guard.sweep()
    assert {file.name for file in tmp_path.iterdir()} == kept - {f"{guard.TOPOLOGY}old"}


def test_other_files_are_not_looked_at(monkeypatch):
    """There may be many in TMPDIR, and a mount that does not answer."""
    other = SimpleNamespace(name="mine", stat=lambda **_: pytest.fail("it was looked at"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda _: [other])
        assert guard.own_files("", guard.TOPOLOGY, 1.0) == set()


def test_only_shared_memory_that_no_process_holds_is_removed(tmp_path, monkeypatch):
    import mmap

    monkeypatch.setattr(guard, "SHARED_MEMORY", str(tmp_path))
    of_mpich = [f"mpich_shm_{what}" for what in ("mapped", "open", "older", "left")]
    for name in (*of_mpich, "ucx_shm_posix_left", "mine"):
        (tmp_path / name).write_bytes(bytes(mmap.PAGESIZE))
    # Python's own mmap keeps a descriptor open, while MPI closes it.
    code = (
        "import ctypes, os, sys; c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p\n"
        "f = os.open(sys.argv[1], os.O_RDWR)\n"
        "c.mmap(None, ctypes.c_size_t(4096), 3, 1, f, ctypes.c_long(0)); os.close(f)\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with open(tmp_path / "mpich_shm_open"):
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "mpich_shm_mapped")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert holder.stdout.readline() == "ready\n"
        guard.remove_abandoned({str(tmp_path / "mpich_shm_older")})
        holder.communicate()
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"mpich_shm_mapped", "mpich_shm_open", "mpich_shm_older", "mine"}
