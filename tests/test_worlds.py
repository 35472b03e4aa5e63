"""Ranks that serve many tests: an error in one call fails that call and not the next one."""

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import leftovers
import psutil
import pytest
import remains
from rank_tests import with_ranks
from worlds import CallFailed, Worlds

from numba_kernels.launch import guard

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def worlds():
    """Worlds that no other test uses."""
    own = Worlds()
    yield own
    assert own.end() == []


def ask(worlds, function, *arguments, ranks=2, timeout=600, **how):
    return worlds.call(ranks, __file__, function.__name__, arguments, timeout=timeout, **how)


def pid():
    print(os.getpid())


def same_processes(worlds):
    """Whether the same processes serve two calls."""
    return ask(worlds, pid) == ask(worlds, pid)


# What stays and what does not


def adds(single_node):
    """An ordinary use of a team, with output."""
    import numpy as np

    from numba_kernels import Team

    team = Team()
    assert team.single_node == single_node
    assert (team.allreduce(np.ones(1000)) == team.size).all()
    print(f"rank {team.rank}", os.getpid(), flush=True)
    os.write(1, b"written\n")


def test_one_start_for_many_calls(worlds):
    """Ranks stay and sleep between calls; a variable is set for its own call only."""
    first = ask(worlds, adds, True)
    assert re.fullmatch(r"(rank \d \d+\nwritten\n){2}", first)
    assert ask(worlds, adds, False, env={"NUMBA_KERNELS_WINDOW": "0"}) == first
    assert ask(worlds, adds, True) == first
    (world,) = worlds.kept.values()
    assert world.calls == 3

    def used():
        times = [psutil.Process(pid).cpu_times() for pid in world.processes]
        return sum(t.user + t.system for t in times)

    before = used()
    time.sleep(0.5)
    assert used() - before < 0.05
    assert worlds.end() == []
    assert not [pid for pid in world.processes if psutil.pid_exists(pid)]
    assert not world.folder.exists()


def variable(name):
    print(os.environ.get(name))


def test_what_a_start_would_take_over(worlds, monkeypatch, tmp_path):
    monkeypatch.setenv("H", "1")
    assert ask(worlds, variable, "H").split() == ["1", "1"]
    monkeypatch.setenv("H", "2")
    assert ask(worlds, variable, "H").split() == ["2", "2"]
    before = ask(worlds, pid)
    monkeypatch.chdir(tmp_path)
    assert ask(worlds, pid) != before
    assert worlds.fits({"NUMBA_KERNELS_NODE": "2"}) and not worlds.fits({"NUMBA_CACHE_DIR": "x"})


def few_at_once():
    """As many worlds are kept as fit; the one that has waited longest ends first."""


@pytest.mark.thorough
def test_not_too_many_at_once(worlds, monkeypatch):
    monkeypatch.setattr("worlds.RANKS", 3)
    monkeypatch.setattr("worlds.CALLS", 3)
    for ranks in (1, 2, 1, 3):
        ask(worlds, few_at_once, ranks=ranks)
    assert list(worlds.kept) == [(3, False)]
    for _ in range(2):
        ask(worlds, few_at_once, ranks=3)
    assert not worlds.kept


# Calls that fail


def breaks():
    from numba_kernels import Team, errors

    team = Team()
    if team.rank == 1:
        assert team.size == 3, "as it should be"
    with pytest.raises(errors.PeerError, match="rank 1 failed: AssertionError: as it should be"):
        team.barrier()
    print("told")


def fails(who):
    """One rank fails as in a cell of a notebook, and not every other one notices it."""
    from numba_kernels import Team, errors
    from numba_kernels.team.failure import abort_all

    team = Team()
    if team.rank == who:
        abort_all(ValueError("as it should be"))
    elif team.rank == 0:
        with pytest.raises(errors.PeerError):
            team.barrier()


def test_ranks_recover_from_a_failure(worlds):
    first = ask(worlds, adds, True, ranks=3)
    for who in (1, 2):
        ask(worlds, fails, who, ranks=3)
        assert ask(worlds, adds, True, ranks=3) == first  # the same processes


def hangs():
    """One rank is busy for ever, and another one waits for it."""
    from mpi4py import MPI

    while MPI.COMM_WORLD.rank == 1:
        pass
    MPI.COMM_WORLD.Barrier()


def dies():
    from mpi4py import MPI

    print("last words", flush=True)
    MPI.COMM_WORLD.Barrier()  # both have printed: mpiexec may end the other one at once
    if MPI.COMM_WORLD.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    MPI.COMM_WORLD.Barrier()


def ends():
    sys.exit(0)


def leaves_a_child():
    subprocess.Popen(SLEEPER)


def no_such_name():
    import numba_kernels.nothing  # noqa: F401


FAILING = {
    breaks: ["rank 1: AssertionError: as it should be", "told", "in breaks", "team.size == 3"],
    hangs: ["ranks [0, 1]: no end in 2", "in hangs"],
    dies: ["rank 1: its process ended", "last words\nlast words"],
    ends: ["rank 0: SystemExit"],
    leaves_a_child: ["rank 0: left running: process", "time.sleep(60)"],
    no_such_name: ["ModuleNotFoundError: No module named 'numba_kernels.nothing'"],
}


@pytest.mark.thorough
def test_calls_that_fail(worlds):
    """Each call fails with its own words; the next one has other processes, which stay."""
    before = ask(worlds, pid)
    for function, words in FAILING.items():
        with pytest.raises(CallFailed) as failed:
            ask(worlds, function, timeout=2 if function is hangs else 600)
        for word in words:
            assert word in str(failed.value), function.__name__
        after = ask(worlds, pid)
        assert after != before and ask(worlds, pid) == after, function.__name__
        before = after


def names_shared_memory():
    import mpi4py.MPI  # noqa: F401

    print(*re.findall(r"/dev/shm/\S+", Path("/proc/self/maps").read_text()))


def test_a_killed_world_leaves_no_shared_memory(worlds, monkeypatch):
    """Not even if its ranks are stopped, and the process that would kill them, too.

    No signal goes to a mere number, which may be another process's by then.
    """
    sent = []
    monkeypatch.setattr(guard, "send", lambda *pid_and_signal: sent.append(pid_and_signal))
    files = set(map(Path, ask(worlds, names_shared_memory).split()))
    [world] = worlds.kept.values()
    ranks = {psutil.Process(pid) for pid in world.pids.values()}
    stopped = ranks | {rank.parent() for rank in ranks}
    assert any(file.exists() for file in files)
    worlds.kept.clear()
    for each in stopped:
        each.suspend()
    try:
        world.kill()
        assert not any(file.exists() for file in files)
        assert not sent
    finally:
        for each in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()


def leaves_a_grandchild():
    """Start a process whose parent ends, so that no rank has it as a child."""
    code = f"import subprocess; subprocess.Popen({SLEEPER}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_process_that_no_rank_knows_of(worlds, mark):
    known = {process.pid for process in leftovers.processes(mark)}
    ask(worlds, leaves_a_grandchild)
    left = leftovers.check(mark, known | worlds.pids(), leftovers.segments(), patience=0.1)
    assert len(left) == 2 and all("time.sleep(60)" in what for what in left)
    assert same_processes(worlds)


# Calls after which ranks are not as before


def keeps_a_team(patch):
    import numba_kernels

    patch.setattr(numba_kernels.errors, "kept", numba_kernels.Team(), raising=False)


def keeps_a_failed_world(patch):
    from numba_kernels import Team
    from numba_kernels.team import failure

    Team()
    failure.abort_all(ValueError("by purpose"))


CHANGES = {  # what a call does, by what is said of it
    "a team: ": keeps_a_team,
    "clocks.clock": lambda patch: patch.setattr("numba_kernels.trace.clocks.clock", lambda: 0),
    "'ring'": lambda patch: patch.setitem(import_module(ALLREDUCE).MESSAGES, "ring", None),
    "'barrier'": lambda patch: patch.setattr("numba_kernels.Team.barrier", lambda self: None),
    "hidden": lambda patch: patch.setitem(sys.modules, "keras", None),
    "environment": lambda patch: patch.setenv("NUMBA_KERNELS_WINDOW", "0"),
    "thread ": lambda patch: threading.Timer(2, print).start(),
    "handlers": lambda patch: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "world has failed": keeps_a_failed_world,
}
ALLREDUCE = "numba_kernels.allreduce"


@with_ranks(2)
def test_every_change_is_found():
    """In one process, which loaded our modules before; `change` is the first to load them."""
    adds(True)
    for word, function in CHANGES.items():
        before = remains.Before()
        with pytest.MonkeyPatch.context() as patch:
            function(patch)
            found = before.changes()
        assert any(word in what for what in found), f"{word}: {found}"


def change(word):
    CHANGES[word](pytest.MonkeyPatch())


@pytest.mark.thorough(but="clocks.clock")
@pytest.mark.parametrize("word", ["a team: ", "clocks.clock", "'ring'"])
def test_what_is_changed_is_not_passed_on(worlds, word):
    before = ask(worlds, pid, ranks=1)
    ask(worlds, change, word, ranks=1)
    assert not worlds.kept
    assert ask(worlds, pid, ranks=1) != before


def loads_keras():
    """Pretend that TensorFlow was loaded; loading it would take ten seconds."""
    utils = SimpleNamespace(clear_session=lambda: print("cleared"))
    sys.modules["keras"] = SimpleNamespace(utils=utils)


def test_with_keras_that_was_not_asked_for_it_serves_one_file(worlds, tmp_path):
    assert ask(worlds, loads_keras, ranks=1) == "cleared\n"
    before = ask(worlds, pid, ranks=1)
    assert ask(worlds, pid, ranks=1) == before
    other = tmp_path / "other.py"
    other.write_text("import os\ndef pid(): print(os.getpid())")
    after = worlds.call(1, str(other), "pid", [], timeout=600)
    assert after not in before


def has_keras():
    missing = {"keras", "tensorflow", "tutorial_dl.training"} - sys.modules.keys()
    assert not missing, f"not forked from a process that has loaded {missing}: fork_server.why_not"
    assert "tutorial_dl" in dict.fromkeys(name.split(".")[0] for name in remains.loaded)


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")  # another worker would keep TensorFlow, too
def test_a_world_for_keras_serves_all_files(worlds, tmp_path):
    """Its ranks are forked with Keras loaded; changes of our modules are noticed all the same."""
    ask(worlds, has_keras, ranks=1, keras=True)
    other = tmp_path / "other.py"
    other.write_text("import os\ndef pid(): print(os.getpid())")
    mine = ask(worlds, pid, ranks=1, keras=True)
    assert worlds.call(1, str(other), "pid", [], timeout=60, keras=True) == mine
    assert ask(worlds, pid, ranks=1) not in mine


def ends_badly():
    atexit.register(os._exit, 3)


def test_an_end_that_is_not_clean(worlds):
    ask(worlds, ends_badly)
    (problem,) = worlds.end()
    # mpiexec's status is that of a rank, or of one that mpiexec has killed because of it.
    assert re.search("2 ranks ended with status (3|9)", problem) and "test_worlds.py" in problem
    worlds.problems.clear()


def test_no_world(worlds, monkeypatch):
    monkeypatch.setattr("worlds.SERVER", "no_such_module")
    with pytest.raises(CallFailed, match=r"(?s)no world of 2 ranks:.*no_such_module"):
        ask(worlds, pid)
