"""Cells on engines with a rank that fails, is blocked, killed or interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import clock
import pytest
from cell_messages import OFFER, failing

from tutorial_dl.cluster.cell_errors import ANSI, CellError, CellInterrupted, CellTimeout

SECONDS = 300
TEAM = "team = Team(); x = team.empty(1000, 'float32'); x[:] = 1; team.allreduce(x);"


@pytest.fixture(params=["window", "messages"])
def team_cluster(request, shared_cluster):
    """Three engines, whose new teams use the node's window, or messages."""
    variable = "import os; os.environ['NUMBA_KERNELS_WINDOW'] = '{:d}'"
    shared_cluster.run(variable.format(request.param == "window"))
    yield shared_cluster
    shared_cluster.run("del os.environ['NUMBA_KERNELS_WINDOW']")


@contextlib.contextmanager
def ctrl_c_after(seconds: float, folder):
    """Send SIGINT to this process, as the stop button does, but not after the block has ended.

    The seconds count from the moment when all three ranks are in the cell (see `running`). The
    list that it yields gets the time of the signal.
    """
    sent, ended = [], threading.Event()

    def send():
        while not ended.is_set() and len(list(folder.glob("*.runs"))) < 3:
            time.sleep(0.02)
        if not ended.wait(seconds):
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()


def running(folder, code: str) -> str:
    """`code`, after a first line by which each rank shows that it is in the cell."""
    return f"open(f'{folder}/{{rank}}.runs', 'w').close()\n{code}"


# A rank raises ---------------------------------------------------------------------------------

WAITING = "ranks that wait in a team hear of a failure"
FOLLOWS = "PeerError: rank {} failed: {}"
BAD = "ValueError: bad batch"
RAISES = {  # a cell, and the lines of its error
    **{
        call: (
            f"if rank == 1: raise ValueError('bad batch')\nteam.{call}",
            [f"rank 1: {BAD}", *(f"rank {k}: {FOLLOWS.format(1, BAD)}" for k in (0, 2))],
        )
        for call in ("allreduce(x)", "barrier()", "allgather(x)", "broadcast(x, root=1)")
    },
    "exit": (
        "import sys\nif rank == 2: sys.exit(3)\nteam.barrier()",
        [
            "rank 2: SystemExit: 3",
            *(f"rank {k}: {FOLLOWS.format(2, 'SystemExit: 3')}" for k in (0, 1)),
        ],
    ),
    "wrapped": (  # an error that a peer's has caused is no cause
        "if rank == 2: raise ValueError('bad batch')\ntry:\n    team.barrier()\n"
        "except Exception as error:\n    raise RuntimeError('wrapped') from error",
        [f"rank 2: {BAD}", *(f"rank {k}: RuntimeError: wrapped" for k in (0, 1))],
    ),
}


@pytest.mark.thorough(but=["window-barrier()", "messages-allreduce(x)", "window-exit"])
@pytest.mark.parametrize("name", RAISES)
def test_who_waits_in_a_team_raises_too(team_cluster, name):
    c, (code, lines) = team_cluster, RAISES[name]
    c.run(TEAM)
    assert failing(c, code, took=WAITING) == lines
    c.run(TEAM + "\nassert (x == 3).all() and kept == 10 * rank")  # the next cell works


DEEP = "def deep(n): return deeper(n)\ndef deeper(n): return deep(n + 1)\ndeep(0)"
WORSE = "class Worse(Exception):\n    def __str__(self): raise ValueError\nraise Worse"
UNSAID = "Worse: (its message could not be made: ValueError)"
ODD = {  # a cell, the line of its error, and the most lines that are shown
    "exit": ("exit()", "SystemExit", 4),
    "quit": ("x = 1\nquit()", "SystemExit", 4),
    "sys.exit": ("import sys\nsys.exit(3)", "SystemExit: 3", 4),
    "no message": (WORSE, UNSAID, 30),
    "no message of Python's own": (
        f"{WORSE[:-11]}\nraise ValueError(Worse())",
        f"ValueError{UNSAID[5:]}",
        30,
    ),
    "caused by one": (
        f"{WORSE[:-11]}\ntry: raise Worse\nexcept Worse: 1 / 0",
        "ZeroDivisionError",
        60,
    ),
    "too deep": (DEEP, "RecursionError: maximum recursion depth exceeded", 600),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_errors_are_short_and_engines_live(shared_cluster, name):
    code, line, most = ODD[name]
    with pytest.raises(CellError) as error:
        shared_cluster.run(code)
    assert error.value.summary[0].startswith(f"ranks 0-2: {line}")
    assert len(error.value._render_traceback_()) <= most
    shared_cluster.run("assert rank in (0, 1, 2)")


def test_peers_hear_of_an_error_without_a_message(shared_cluster):
    code = WORSE.replace("raise Worse", "if rank == 1: raise Worse\nTeam().barrier()")
    followed = [f"rank {k}: {FOLLOWS.format(1, UNSAID)}" for k in (0, 2)]
    assert failing(shared_cluster, code) == [f"rank 1: {UNSAID}", *followed]


def test_a_mismatch_names_both(team_cluster):
    team_cluster.run(TEAM)
    code = "team.barrier() if rank == 1 else team.allreduce(x)"
    summary = failing(team_cluster, code, took=WAITING)
    assert "MismatchError" in summary[0]
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


def test_output_comes_once_and_before_the_end(shared_cluster, capsys, tmp_path):
    seen = tmp_path / "seen"  # the cell ends when its output has been

    def watch():
        deadline = time.monotonic() + 300
        text = ""
        while "early" not in text and time.monotonic() < deadline:
            text += capsys.readouterr().out
            time.sleep(0.01)
        seen.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    waits = f"while not os.path.exists({str(seen)!r}): time.sleep(0.01)"
    shared_cluster.run(f"import os\nprint('early', flush=True)\n{waits}", ranks=[0])
    watcher.join()
    failing(shared_cluster, "print('once'); 1 / 0", ranks=[1])
    captured = capsys.readouterr()
    assert captured.out.count("once") == 1 and "ZeroDivisionError" not in captured.err


def test_a_cell_may_await(shared_cluster, capsys):
    slept = "import asyncio\nawait asyncio.sleep(0.01)\n"
    shared_cluster.run(f"{slept}awaited = rank", timeout=30)
    assert shared_cluster["awaited"] == [0, 1, 2]
    summary = failing(shared_cluster, f"{slept}assert rank != 1, 'one'\nTeam().barrier()")
    assert summary[0] == "rank 1: AssertionError: one"
    with pytest.raises(CellTimeout, match="3 of 3 ranks stopped, variables are kept"):
        shared_cluster.run("await asyncio.sleep(300)", timeout=0.5)


def test_a_computing_rank_is_not_interrupted(shared_cluster, capfd):
    code = "done = False\nif rank == 1: raise ValueError('early')\nif rank == 0: time.sleep(5)\n"
    summary = failing(shared_cluster, code + "done = True")
    assert summary == ["rank 1: ValueError: early"]
    shared_cluster.run("assert done == (rank != 1)")
    said = capfd.readouterr().err
    assert said.count("rank 1: ValueError: early") == 1
    assert said.count("rank 0 is in time.sleep(5) (line 3)") == 1


@pytest.mark.thorough
def test_ranks_that_pass_through_mpi_calls_are_not_blocked(shared_cluster):
    # A rank is nearly always found in the same call, but the call returns all the time.
    code = """
done = False
if rank == 1: raise ValueError('early')
pair, begin = comm.Create_group(comm.group.Excl([1])), time.monotonic()
while pair.bcast(time.monotonic() - begin) < 5: pass
"""
    summary = failing(shared_cluster, code + "\ndone = True")
    shared_cluster.run("assert done", ranks=[0, 2])
    assert summary == ["rank 1: ValueError: early"]


# Raw MPI calls ---------------------------------------------------------------------------------


@pytest.mark.thorough(but="2-MPI.COMM_WORLD.Dup()-y = comm.allreduce(x)-y = comm.allreduce(x)")
@pytest.mark.parametrize(
    "ranks, comm, call, shown",
    [
        (3, "MPI.COMM_WORLD", "y = comm.allreduce(x)", "comm.allreduce(x)"),
        # this call keeps the GIL
        (2, "MPI.COMM_WORLD.Dup()", "y = comm.allreduce(x)", "y = comm.allreduce(x)"),
        (2, "MPI.COMM_WORLD", "comm.Barrier()", "comm.Barrier()"),
    ],
)
def test_ranks_in_a_raw_mpi_call_are_named(request, ranks, comm, call, shown):
    c = request.getfixturevalue("shared_cluster" if ranks == 3 else "own_cluster")
    who = "ranks 0, 2 are" if ranks == 3 else "rank 0 is"
    c.run(f"comm = {comm}; x = 1")
    code = f"y = 0\n\nif rank == 1: raise ValueError('bad')\n{call}"
    summary = failing(c, code, took="ranks in a raw MPI call are named")
    blocked = f"blocked in {shown} (line 4), which nothing can interrupt"
    assert summary == [
        "rank 1: ValueError: bad",
        f"{who} {blocked}",
        OFFER,
    ]
    # The answer comes soon: blocked ranks have 2 s to become free.
    summary = failing(c, "print(1)", took="ranks that are still in a raw MPI call")
    assert summary == [f"{who} still {blocked}", OFFER]
    c.run("1 / 1", ranks=[1])  # rank 1 is free
    c.run(call, ranks=[1])  # what the others wait for
    c.run("pass")


# A cell after one that failed --------------------------------------------------------------------

UNTIL = """import os
while not os.path.exists({!r}):
    time.sleep(0.01)
"""
DEAF = "import signal; before = signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
HEARS = "signal.signal(signal.SIGINT, before)\n"


def test_a_cell_runs_after_one_that_was_given_up_and_fails_later(shared_cluster, tmp_path):
    c, go = shared_cluster, tmp_path / "go"
    with ctrl_c_after(0.1, tmp_path):
        code = UNTIL.format(str(go)) + HEARS + "raise ValueError('late')"
        summary = failing(c, DEAF + running(tmp_path, code), CellInterrupted)
    assert summary[0] == "interrupted: 0 of 3 ranks stopped, ranks 0-2 did not stop"
    cell = c.cells.submit("after_it = rank")
    go.touch()
    cell.wait()
    c.run("assert after_it == rank")


def test_a_cell_that_waits_behind_one_that_fails_does_not_run(shared_cluster, tmp_path):
    c, go = shared_cluster, tmp_path / "go"
    c.run("behind = []")
    first = c.cells.submit(UNTIL.format(str(go)) + "if rank == 1: raise ValueError('first')")
    second, third = (c.cells.submit(f"behind.append({i})") for i in (2, 3))
    go.touch()
    with pytest.raises(CellError, match="rank 1: ValueError: first"):
        first.wait()
    for cell in (second, third):
        with pytest.raises(CellError, match="rank 1: TaskAborted: not run, because a cell before"):
            cell.wait()
    c.run("assert behind == ([] if rank == 1 else [2, 3])")


# Interrupt -------------------------------------------------------------------------------------


@pytest.mark.thorough(but="window-team.barrier() if rank else time.sleep(100)")
@pytest.mark.parametrize(
    "code", ["team.barrier() if rank else time.sleep(100)", "while True: sum(range(1000))"]
)
def test_interrupt(team_cluster, tmp_path, code):
    c = team_cluster
    c.run(TEAM)
    with ctrl_c_after(0.5, tmp_path) as sent:
        summary = failing(c, running(tmp_path, code), CellInterrupted)
        clock.note("Ctrl-C stops a cell", time.monotonic() - sent[0])
    assert summary == ["interrupted: 3 of 3 ranks stopped, variables are kept"]
    c.run(TEAM + "\nassert (x == 3).all() and kept == 10 * rank")


def test_a_second_interrupt_does_not_wait(shared_cluster, tmp_path):
    code = """
end = time.monotonic() + 4
while time.monotonic() < end:
    try:
        time.sleep(10)
    except KeyboardInterrupt:
        pass
"""
    with ctrl_c_after(0.5, tmp_path), ctrl_c_after(1.0, tmp_path) as second:
        summary = failing(shared_cluster, running(tmp_path, code), CellInterrupted)
        clock.note("a second Ctrl-C does not wait", time.monotonic() - second[0])
    assert summary[0].startswith("interrupted: 0 of 3 ranks stopped")
    shared_cluster.run("pass")  # waits for these ranks


IGNORES = """
def ignore():
    try:
        time.sleep(6)
    except KeyboardInterrupt:
        time.sleep(5)
if rank: ignore()
else: time.sleep(6)
"""
INTERRUPTED = {  # a cell, the lines of its error, and what lets its ranks go on
    "raw MPI": (
        "if rank: comm.recv(source=0)\nelse: time.sleep(100)",
        [
            "interrupted: 1 of 3 ranks stopped, ranks 1, 2 did not stop",
            "ranks 1, 2 are blocked in comm.recv(source=0) (line 2), which nothing can interrupt",
            OFFER,
        ],
        "comm.send(0, 1), comm.send(0, 2)",
    ),
    "ignores": (
        IGNORES,
        [
            "interrupted: 1 of 3 ranks stopped, ranks 1, 2 did not stop",
            "ranks 1, 2 are in time.sleep(5) (line 8)",  # where the cell calls it
            OFFER,
        ],
        "pass",
    ),
    "cause": (
        "if rank == 2: 1 / 0\ntime.sleep(100)",
        [
            "rank 2: ZeroDivisionError: division by zero",
            *("rank 0: KeyboardInterrupt", "rank 1: KeyboardInterrupt", "interrupted"),
        ],
        "pass",
    ),
}


@pytest.mark.thorough(but=["ignores", "cause"])
@pytest.mark.parametrize("name", INTERRUPTED)
def test_what_an_interrupt_cannot_end_is_named(shared_cluster, tmp_path, name):
    code, lines, then = INTERRUPTED[name]
    kind = CellError if name == "cause" else CellInterrupted
    with ctrl_c_after(0.5, tmp_path) as sent:
        assert failing(shared_cluster, running(tmp_path, code), kind) == lines
        clock.note(f"Ctrl-C is answered: {name}", time.monotonic() - sent[0])
    shared_cluster.run(then, ranks=[0])
    shared_cluster.run("pass")  # waits for the ranks


def test_timeout(shared_cluster):
    code = "pass\nif rank: time.sleep(100)"
    summary = failing(shared_cluster, code, CellTimeout, "a time limit of 8 s", timeout=8)
    assert summary == [
        "the cell took longer than 8 s: 3 of 3 ranks stopped, variables are kept",
        "ranks 1, 2 were in time.sleep(100) (line 2)",
    ]
    shared_cluster.run("pass", timeout=300)
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds, got 0"):
        shared_cluster.run("pass", timeout=0)
