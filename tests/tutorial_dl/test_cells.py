"""Cells on engines: what a failing, blocked, killed or interrupted rank leads to."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import leftovers
import psutil
import pytest

from tutorial_dl import cluster
from tutorial_dl.cluster import engines
from tutorial_dl.cluster.cell_errors import ANSI, CellError, CellInterrupted, CellTimeout

SECONDS = 60
OFFER = "c.restart() gives new engines (their variables are lost)"
SETUP = """
import time
from mpi4py import MPI
import numpy as np
from numba_kernels import Team
comm = MPI.COMM_WORLD
rank = comm.rank
kept = 10 * rank
"""
TEAM = "team = Team(); x = team.empty(1000, 'float32'); x[:] = 1; team.allreduce(x);"


@contextlib.contextmanager
def started(folder, n: int, window: bool = True):
    """A cluster with SETUP done, and its IPython files in a folder that must be empty later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder))
        patch.setenv("NUMBA_KERNELS_WINDOW", str(int(window)))
        with cluster.start(n=n, timeout=SECONDS) as c:
            patch.setattr(engines, "_running", None)  # clusters of several fixtures side by side
            c.run(SETUP)
            yield c
    deadline = time.monotonic() + 5
    while (left := list(folder.glob("profile_tutorial_dl*"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.fixture(scope="module", params=["window", "messages"])
def team_cluster(request, tmp_path_factory):
    """Three engines, whose teams use the node's window, or messages."""
    folder = tmp_path_factory.mktemp("ipython")
    with started(folder, 3, request.param == "window") as c:
        yield c


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    """Three engines for tests that don't hurt them."""
    with started(tmp_path_factory.mktemp("ipython"), 3) as c:
        yield c


@pytest.fixture(scope="module")
def damaged_cluster(tmp_path_factory):
    """Three engines that a test may leave blocked or dead."""
    with started(tmp_path_factory.mktemp("ipython"), 3) as c:
        yield c


@pytest.fixture
def own_cluster(damaged_cluster):
    """Three engines that no test has had before, whatever the last one left: by a restart."""
    damaged_cluster.restart()
    damaged_cluster.run(SETUP)
    record = damaged_cluster._record
    for guard in (record.controller, record.engines):
        leftovers.stay(int(guard[0]))
    return damaged_cluster


@pytest.fixture
def new_cluster(tmp_path):
    """Three engines of a test that restarts them itself."""
    with started(tmp_path, 3) as c:
        yield c


def failing(c, code: str, kind: type = CellError, **options) -> tuple[list[str], float]:
    """The lines of the error that a cell must end with, and the seconds it took."""
    began = time.monotonic()
    with pytest.raises(kind) as error:
        c.run(code, **{"timeout": 30, **options})  # a test must not hang where a protection fails
    return error.value.summary, time.monotonic() - began


@contextlib.contextmanager
def ctrl_c_after(seconds: float):
    """SIGINT to this process, as from the stop button; tells when. Never later than the body."""
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds, send)
    timer.start()
    try:
        yield sent
    finally:
        timer.cancel()
        timer.join()


# A rank raises ---------------------------------------------------------------------------------

WAITS = {
    "allreduce": "team.allreduce(x)",
    "barrier": "team.barrier()",
    "allgather": "team.allgather(x)",
    "broadcast": "team.broadcast(x, root=1)",
}


@pytest.mark.parametrize("wait", WAITS)
def test_who_waits_in_a_team_raises_too(team_cluster, wait):
    c = team_cluster
    c.run(TEAM)
    summary, seconds = failing(c, f"if rank == 1: raise ValueError('bad batch')\n{WAITS[wait]}")
    assert seconds < 2
    follows = "PeerError: rank 1 failed: ValueError: bad batch"
    assert summary == ["rank 1: ValueError: bad batch", f"rank 0: {follows}", f"rank 2: {follows}"]
    c.run(TEAM + "\nassert (x == 3).all() and kept == 10 * rank")  # the next cell works


def test_exit_in_a_cell_is_a_failure(team_cluster):
    team_cluster.run(TEAM)
    summary, seconds = failing(
        team_cluster, "import sys\nif rank == 2: sys.exit(3)\nteam.barrier()"
    )
    assert seconds < 2
    assert summary[0] == "rank 2: SystemExit: 3"
    assert summary[1:] == [f"rank {k}: PeerError: rank 2 failed: SystemExit: 3" for k in (0, 1)]


def test_a_mismatch_names_both(team_cluster):
    team_cluster.run(TEAM)
    code = "team.barrier() if rank == 1 else team.allreduce(x)"
    summary, seconds = failing(team_cluster, code)
    assert seconds < 2 and "MismatchError" in summary[0]
    assert "barrier" in "\n".join(summary) and "allreduce" in "\n".join(summary)


def test_an_error_knows_how_long_the_cell_took(shared_cluster):
    began = time.monotonic()
    with pytest.raises(CellError) as error:
        shared_cluster.run("time.sleep(0.3); 1 / 0")
    assert 0.3 <= error.value.seconds <= time.monotonic() - began


def test_equal_errors_are_shown_once(shared_cluster):
    code = "def f(k):\n    return 1 / k\nf(0 if rank != 1 else 'a')"
    with pytest.raises(CellError) as error:
        shared_cluster.run(code)
    shown = ANSI.sub("", "\n".join(error.value._render_traceback_()))
    assert shown.splitlines()[0] == "ranks 0, 2: ZeroDivisionError: division by zero"
    assert shown.splitlines()[-1].startswith("rank 1: TypeError: unsupported operand")
    assert shown.count("Traceback (most recent call last)") == 1
    # A script shows the traceback as a note; the message alone does not repeat it.
    assert "return 1 / k" not in str(error.value)
    assert error.value.__notes__ == [ANSI.sub("", error.value.traceback)]
    assert error.value.failures[2].name == "ZeroDivisionError"


def test_an_error_that_comes_of_a_peers_is_no_cause(shared_cluster):
    shared_cluster.run(TEAM)
    code = """
if rank == 2: raise ValueError('the cause')
try:
    team.barrier()
except Exception as error:
    raise RuntimeError('wrapped') from error
"""
    summary, _ = failing(shared_cluster, code)
    assert [line.split(":")[1].strip() for line in summary] == ["ValueError", *2 * ["RuntimeError"]]


def test_output_comes_once_and_before_the_end(shared_cluster, capsys):
    marks = []

    def watch():
        deadline = time.monotonic() + 10
        text = ""
        while "early" not in text and time.monotonic() < deadline:
            text += capsys.readouterr().out
            time.sleep(0.01)
        marks.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    shared_cluster.run("if rank == 0: print('early', flush=True); time.sleep(1.5)", ranks=[0])
    ended = time.monotonic()
    watcher.join()
    assert ended - marks[0] > 1
    failing(shared_cluster, "print('once'); 1 / 0", ranks=[1])
    captured = capsys.readouterr()
    assert captured.out.count("once") == 1 and "ZeroDivisionError" not in captured.err


def test_a_rank_that_computes_is_left_to_it(shared_cluster, capfd):
    code = "done = False\nif rank == 1: raise ValueError('early')\nif rank == 0: time.sleep(5)\n"
    summary, seconds = failing(shared_cluster, code + "done = True")
    assert seconds > 5 and summary == ["rank 1: ValueError: early"]
    shared_cluster.run("assert done == (rank != 1)")
    said = capfd.readouterr().err
    assert said.count("rank 1: ValueError: early") == 1
    assert said.count("rank 0 is in time.sleep(5) (line 3)") == 1


def test_ranks_that_pass_through_mpi_calls_are_not_blocked(shared_cluster):
    # Nearly always found in the same call; but it comes back all the time.
    code = """
if rank == 1: raise ValueError('early')
pair, begin = comm.Create_group(comm.group.Excl([1])), time.monotonic()
while pair.bcast(time.monotonic() - begin) < 5: pass
"""
    summary, seconds = failing(shared_cluster, code)
    assert seconds > 5 and summary == ["rank 1: ValueError: early"]


# Raw MPI calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "comm, call, shown",
    [
        ("MPI.COMM_WORLD", "y = comm.allreduce(x)", "comm.allreduce(x)"),
        ("MPI.COMM_WORLD.Dup()", "y = comm.allreduce(x)", "y = comm.allreduce(x)"),  # keeps the GIL
        ("MPI.COMM_WORLD", "comm.Barrier()", "comm.Barrier()"),
    ],
)
def test_ranks_in_a_raw_mpi_call_are_named(own_cluster, comm, call, shown):
    c = own_cluster
    c.run(f"comm = {comm}; x = 1")
    code = f"y = 0\n\nif rank == 1: raise ValueError('bad')\n{call}"
    summary, seconds = failing(c, code)
    assert 3 < seconds < 5
    blocked = f"blocked in {shown} (line 4), which nothing can interrupt"
    assert summary == [
        "rank 1: ValueError: bad",
        f"ranks 0, 2 are {blocked}",
        OFFER,
    ]
    summary, seconds = failing(c, "print(1)")  # soon: they get 2 s to become free
    assert seconds < 3.5 and summary == [f"ranks 0, 2 are still {blocked}", OFFER]
    c.run("1 / 1", ranks=[1])  # is free


def test_blocked_ranks_that_get_free_can_go_on(shared_cluster):
    c = shared_cluster
    code = "if rank == 1: raise ValueError('too early')\nif rank == 0: got = comm.recv(source=1)"
    summary, _ = failing(c, code)
    assert summary[1] == (
        "rank 0 is blocked in comm.recv(source=1) (line 2), which nothing can interrupt"
    )
    c.run("comm.send('late', 0)", ranks=[1])
    c.run("assert rank or got == 'late'")


# Interrupt -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["team.barrier() if rank else time.sleep(100)", "while True: sum(range(1000))"]
)
def test_interrupt(team_cluster, code):
    c = team_cluster
    c.run(TEAM)
    with ctrl_c_after(1.0) as sent:
        summary, _ = failing(c, code, CellInterrupted)
        assert time.monotonic() - sent[0] < 1
    assert summary == ["interrupted: 3 of 3 ranks stopped, variables are kept"]
    c.run(TEAM + "\nassert (x == 3).all() and kept == 10 * rank")


def test_interrupt_of_a_raw_mpi_call(own_cluster):
    with ctrl_c_after(1.0) as sent:
        summary, _ = failing(own_cluster, "if rank: comm.recv(source=0)\nelse: time.sleep(100)",
                             CellInterrupted)  # fmt: skip
        assert time.monotonic() - sent[0] < 2.9
    assert summary == [
        "interrupted: 1 of 3 ranks stopped, ranks 1, 2 did not stop",
        "ranks 1, 2 are blocked in comm.recv(source=0) (line 1), which nothing can interrupt",
        OFFER,
    ]


def test_a_second_interrupt_does_not_wait(shared_cluster):
    code = """
end = time.monotonic() + 4
while time.monotonic() < end:
    try:
        time.sleep(10)
    except KeyboardInterrupt:
        pass
"""
    with ctrl_c_after(1.0), ctrl_c_after(1.5) as second:
        summary, _ = failing(shared_cluster, code, CellInterrupted)
        assert time.monotonic() - second[0] < 1
    assert summary[0].startswith("interrupted: 0 of 3 ranks stopped")
    shared_cluster.run("pass")  # waits for them


def test_ranks_that_ignore_an_interrupt_are_named(shared_cluster):
    code = """
def ignore():
    try:
        time.sleep(6)
    except KeyboardInterrupt:
        time.sleep(5)
if rank: ignore()
else: time.sleep(6)
"""
    with ctrl_c_after(0.5) as sent:
        summary, _ = failing(shared_cluster, code, CellInterrupted)
        assert time.monotonic() - sent[0] < 4.5
    assert summary[:2] == [
        "interrupted: 1 of 3 ranks stopped, ranks 1, 2 did not stop",
        "ranks 1, 2 are in time.sleep(5) (line 6)",
    ]
    shared_cluster.run("pass")  # waits for them


def test_a_cause_comes_before_an_interrupt(shared_cluster):
    with ctrl_c_after(1.0):
        summary, _ = failing(shared_cluster, "if rank == 2: 1 / 0\ntime.sleep(100)")
    assert summary[0] == "rank 2: ZeroDivisionError: division by zero"
    assert summary[1:] == ["rank 0: KeyboardInterrupt", "rank 1: KeyboardInterrupt", "interrupted"]


def test_timeout(shared_cluster):
    summary, seconds = failing(
        shared_cluster, "pass\nif rank: time.sleep(100)", CellTimeout, timeout=1
    )
    assert seconds < 2
    assert summary == [
        "the cell took longer than 1 s: 3 of 3 ranks stopped, variables are kept",
        "ranks 1, 2 were in time.sleep(100) (line 2)",
    ]
    shared_cluster.run("pass", timeout=30)
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds, got 0"):
        shared_cluster.run("pass", timeout=0)


# An engine's process ends ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "ends, how",
    [
        ("os.kill(os.getpid(), 9)", "was killed by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), 11)", "was killed by signal 11 (SIGSEGV)"),
        ("os._exit(3)", "ended with exit status 3"),
        ("os._exit(0)", "ended with exit status 0"),
    ],
)
def test_a_lost_rank_is_named(own_cluster, ends, how):
    c = own_cluster
    lost = c.status()[2]
    expected = [
        f"rank 2 (pid {lost.pid} on {lost.host}) {how}",
        f"the MPI world of all 3 ranks ended with it: {OFFER}",
    ]
    code = f"import os\ntime.sleep(1)\nif rank == 2: {ends}\ncomm.Barrier()"
    summary, seconds = failing(c, code)
    assert summary == expected and seconds < 6
    summary, seconds = failing(c, "print(1)")
    assert summary == expected and seconds < 1


def test_a_rank_lost_between_cells_is_named(own_cluster):
    victim = own_cluster.status()[1]
    os.kill(victim.pid, signal.SIGKILL)
    assert own_cluster.cells.deaths.happened.wait(5)
    summary, seconds = failing(own_cluster, "print(1)")
    assert seconds < 1.5
    assert (
        summary[0] == f"rank 1 (pid {victim.pid} on {victim.host}) was killed by signal 9 (SIGKILL)"
    )


def controllers_guard(c) -> int:
    """The pid of the guard that removes the cluster's folder."""
    for process in psutil.Process().children():
        words = process.cmdline()
        if "--remove" in words and str(c._folder).startswith(words[words.index("--remove") + 1]):
            return process.pid
    raise AssertionError


def test_a_dead_controller_is_no_end(new_cluster):
    """Its engines end with it: the cell ends, and restart works."""
    [controller] = [
        process
        for process in psutil.Process(controllers_guard(new_cluster)).children()
        if "ipyparallel.controller" in process.cmdline()
    ]
    timer = threading.Timer(1.0, controller.kill)
    timer.start()
    summary, seconds = failing(new_cluster, "time.sleep(100)")
    assert seconds < 6 and summary[-1].endswith(OFFER)
    new_cluster.restart()
    new_cluster.run("pass")


def test_a_stopped_cluster_says_so(tmp_path):
    with started(tmp_path, 1) as c:
        c.stop()
        summary, _ = failing(c, "print(1)")
        assert summary == [f"this cluster was stopped: {OFFER}"]


# Restart ---------------------------------------------------------------------------------------


def test_restart_again_and_again(new_cluster):
    times = []
    for state in ("idle", "blocked", "computing", "dead"):
        with contextlib.suppress(CellError, CellTimeout):
            if state == "dead":
                os.kill(new_cluster.status()[0].pid, signal.SIGKILL)
            elif state != "idle":
                code = "MPI.COMM_WORLD.recv()" if state == "blocked" else "while True: pass"
                new_cluster.client[:].execute(f"from mpi4py import MPI\n{code}", block=False)
                time.sleep(0.5)
        began = time.monotonic()
        new_cluster.restart()
        times.append(round(time.monotonic() - began, 1))
        new_cluster.run("from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 3")
    print("restarts took", times, "s")
    assert max(times) < 15


def test_restart_runs_imports_again(new_cluster):
    c = new_cluster
    c.run("import json as j, os\nfrom math import pi\nif True: import uuid\ndef f(): import abc")
    c.run("%matplotlib inline\nimport bisect\ny = 1")
    failing(c, "import decimal\n1 / 0")
    c.restart(imports=True)
    c.run("assert j.dumps and os.path and pi > 3 and bisect.bisect and np.ones and MPI.COMM_WORLD")
    c.run("gone = {'uuid', 'abc', 'decimal', 'y', 'f', 'rank'} & set(globals()); assert not gone")
    c.restart()
    c.run("assert 'j' not in globals()")
