"""Failed teams recover: by `recover()`, or by themselves in a notebook's next cell."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import clock
import numpy as np
import pytest

PLACES = pytest.mark.parametrize("shared", ["1", "0"], ids=["window", "messages"])


def many_times(times):
    """Many failures leave no requests, no communicators and no memory behind."""
    from mpi4py import MPI

    from numba_kernels import PeerError, Team

    team = Team()
    x = team.empty(1000)
    before = None
    for turn in range(times):
        x[:] = 1
        team.allreduce(x)
        assert (x == team.size).all()
        MPI.COMM_WORLD.Barrier()  # no rank is still in this call when another one fails
        culprit = turn % team.size
        if team.rank == culprit:
            team.abort(ValueError(f"turn {turn}"))
        else:
            with pytest.raises(PeerError, match=f"rank {culprit} failed: ValueError: turn {turn}"):
                if turn % 2:
                    team.allreduce(x)
                else:  # 4 MB: its messages wait for their receiver
                    team.allreduce(np.ones(10**6, "float32"), algorithm="ring")
        team.recover(120)
        if turn == times // 2:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert team.generation == times and not team.abandoned and not team.lost
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 20_000, f"{grown} KiB for {times // 2} failures"


@PLACES
@pytest.mark.parametrize("ranks", [2, 3])
def test_many_failures(on_ranks, ranks, shared):
    """`make soak` has 120."""
    on_ranks(ranks, many_times, 24, env={"NUMBA_KERNELS_WINDOW": shared}, fresh=True)


def late_messages():
    """Messages of a failed call are never taken for a later call's, and overwrite nothing."""
    from mpi4py import MPI

    from numba_kernels import PeerError, Team

    team = Team(shared=False)
    x = np.full(500_000, -1.0, "float32")
    for turn in range(20):
        MPI.COMM_WORLD.Barrier()  # no rank is still in a call when another one fails
        if team.rank == turn % team.size:  # the others send to it, some of it arrives
            team.abort(ValueError("by purpose"))
        else:
            with pytest.raises(PeerError):
                team.allreduce(np.full(7 + turn, -5.0, "float32"), algorithm="ring")
                team.allreduce(x, algorithm="ring")
        team.recover(120)
        x[:] = team.rank
        team.allreduce(x, algorithm="ring")
        assert (x == team.size * (team.size - 1) / 2).all()
        y = x.copy()
        time.sleep(0.01)
        assert (x == y).all()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_late_messages(on_ranks, ranks):
    on_ranks(ranks, late_messages)


def interrupted_at_once():
    """Ctrl-C before this rank waits: arrays of messages in flight live until they have arrived."""
    import weakref
    from unittest import mock

    from mpi4py import MPI

    from numba_kernels import PeerError, Team

    team = Team()

    def reduce(algorithm):
        x = np.ones(300_000, "float32")  # its messages wait for their receiver
        arrays.append(weakref.ref(x))
        team.allreduce(x, algorithm=algorithm)

    for algorithm in ("ring", "rabenseifner"):
        arrays = []
        if team.rank == 1:
            ctrl_c = mock.patch.object(team, "_wait", side_effect=KeyboardInterrupt)
            with ctrl_c, pytest.raises(KeyboardInterrupt):
                reduce(algorithm)
            assert arrays[0]() is not None, algorithm
            MPI.COMM_WORLD.Barrier()
        else:
            MPI.COMM_WORLD.Barrier()  # rank 1 has been interrupted while it waited for this one
            with pytest.raises(PeerError, match="rank 1"):
                reduce(algorithm)
        team.recover(120)
        x = np.ones(500, "float32")
        assert (team.allreduce(x, algorithm=algorithm) == team.size).all()
        team.barrier()
    assert not team.abandoned and not team.buffers


def test_interrupt_before_it_waits(on_ranks):
    on_ranks(2, interrupted_at_once, env={"NUMBA_KERNELS_WINDOW": "0"})


def missing():
    """An error names a rank that does not call recover(); when it does, all ranks continue."""
    from mpi4py import MPI

    from numba_kernels import DeadlineError, Team

    team = Team()
    MPI.COMM_WORLD.Barrier()  # all ranks have made it
    if team.rank == 1:
        team.abort(ValueError("by purpose"))
        assert len(team.settle(120)) == 2
        for other in (0, 2):  # it comes after both have given up
            MPI.COMM_WORLD.recv(source=other)
    else:
        with pytest.raises(Exception, match="by purpose"):
            team.barrier()
        with pytest.raises(DeadlineError, match=r"rank 1 did not call recover\(\) within 2"):
            team.recover(2)
        MPI.COMM_WORLD.send("missed", 1)
    team.recover(120)
    x = np.ones(5)
    assert (team.allreduce(x) == 3).all()
    team.recover(120)  # it is not needed, and does no harm
    assert (team.allreduce(np.ones(5)) == 3).all()


@PLACES
def test_a_rank_that_does_not_come(on_ranks, shared):
    on_ranks(3, missing, env={"NUMBA_KERNELS_WINDOW": shared})


def interrupted():
    """Ctrl-C interrupts a rank's recovery; its second try succeeds, and the others need none."""
    from mpi4py import MPI

    from numba_kernels import Team

    team = Team()
    MPI.COMM_WORLD.Barrier()  # all ranks have made it
    team.abort(ValueError("everywhere"))
    team.settle()
    if team.rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            team.recover(120)
        MPI.COMM_WORLD.send("interrupted", 2)
    elif team.rank == 2:
        MPI.COMM_WORLD.recv(source=0)  # so that the others wait
    team.recover(120)
    assert (team.allreduce(np.ones(5)) == 3).all()


@PLACES
def test_interrupt_while_it_recovers(on_ranks, shared):
    on_ranks(3, interrupted, env={"NUMBA_KERNELS_WINDOW": shared})


def letters_that_come_late():
    """A rank that has recovered ignores a late letter that another one was interrupted."""
    from mpi4py import MPI

    from numba_kernels.team.mailbox import AGAIN, FAILED, RECOVERS, Letter, Mailbox

    mail = Mailbox(MPI.COMM_SELF.Dup())
    mail._file(Letter(1, RECOVERS, ""))
    mail._file(Letter(2, FAILED, "of the next one", generation=1))
    assert mail.recovering == {1: 0} and not mail.failures
    mail.next_generation()
    assert not mail.recovering and list(mail.failures) == [2]
    mail._file(Letter(1, AGAIN, "interrupted", generation=0))
    assert [letter.rank for letter in mail.fails_again()] == [1]  # it has not recovered yet
    mail._file(Letter(1, RECOVERS, "", generation=0))
    assert not mail.fails_again() and not mail.recovering


def test_letters_that_come_late(on_ranks):
    on_ranks(1, letters_that_come_late)


def cells():
    """On a notebook's engines, the cell after a failed one works without any call."""
    from numba_kernels import PeerError, Team, TeamError
    from numba_kernels.team.failure import abort_all, new_cell

    teams = {}

    def cell(code, late=0.0):
        """Run a cell as an engine does: all teams learn of any exception."""
        world.Barrier()  # a notebook's next cell begins when all ranks have ended the last one
        time.sleep(late)
        new_cell()
        try:
            return code()
        except BaseException as error:
            abort_all(error)
            return error

    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    rank, size = world.rank, world.size

    def make():
        teams["all"] = Team()
        teams["part"] = teams["all"].split(rank % 2)

    def fails(who, after=0):
        def code():
            for _ in range(after):
                teams["all"].barrier()
            if rank == who:
                raise ZeroDivisionError("in a cell")
            teams["all"].barrier()

        return code

    def works():
        total = teams["all"].allreduce(np.ones(100))
        teams["part"].barrier()
        return total[0]

    assert cell(make) is None
    for who in range(size):
        error = cell(fails(who, after=who))
        kind = ZeroDivisionError if rank == who else PeerError
        assert isinstance(error, kind) and "in a cell" in str(error), error
        assert cell(works) == size
    # Rank 1 fails after its last call, so the others do not notice it.
    error = cell(lambda: (works(), 1 / (rank - 1)))
    assert isinstance(error, ZeroDivisionError) if rank == 1 else error[0] == size
    assert cell(works) == size
    # Two cells fail one after the other, the second one before it uses the team.
    for who in (0, 1):
        error = cell(fails(who))
        assert isinstance(error, ZeroDivisionError if rank == who else PeerError), error
    assert cell(works) == size

    # Rank 1 fails in a cell before the others begin it. They must not take it for an old failure.
    for _ in range(2):
        error = cell(fails(1), late=0.0 if rank == 1 else 0.3)
        assert isinstance(error, ZeroDivisionError if rank == 1 else PeerError), error
        with pytest.raises(TeamError):
            teams["all"].barrier()
    assert cell(works) == size

    # A cell ignores the failure: within the same cell the team does not recover.
    def stubborn():
        if rank == 0:
            raise ZeroDivisionError("in a cell")
        for _ in range(2):
            with pytest.raises(TeamError):
                teams["all"].barrier()

    cell(stubborn)

    # What the team says then is of this cell, though it had also failed in the one before.
    def fails_again():
        if rank == 0:
            teams["all"].abort(ZeroDivisionError("in the second cell"))
        for _ in range(3):
            with pytest.raises(TeamError, match="in the second cell"):
                teams["all"].barrier()

    cell(fails(size - 1))
    assert cell(fails_again) is None
    assert cell(works) == size

    # A rank fails before it makes a team, while the others make it.
    def makes():
        if rank == 0:
            raise ZeroDivisionError("before a team")
        return Team()

    for _ in range(3):
        with clock.seconds("a rank fails where others make a team"):
            error = cell(makes)
        assert rank == 0 or (isinstance(error, PeerError) and "before a team" in str(error)), error
    assert cell(make) is None
    assert cell(works) == size
    # Other ranks wait in the recovery, and a rank fails again before it begins to recover.
    cell(fails(0))
    error = cell(fails(0))
    assert isinstance(error, ZeroDivisionError if rank == 0 else PeerError), error
    assert cell(works) == size
    # A rank that recovers in vain in one cell fails in the next one before the others begin it.
    cell(fails(0))
    for who in (0, size - 1, 0):
        error = cell(fails(who), late=0.0 if rank == who else 0.3)
        assert isinstance(error, ZeroDivisionError if rank == who else PeerError), error
    assert cell(works) == size


@PLACES
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_cells(on_ranks, ranks, shared):
    on_ranks(ranks, cells, env={"NUMBA_KERNELS_WINDOW": shared})


# Groups of ranks


def groups():
    """One of two groups fails, recovers and makes teams; the other one does not notice."""
    from mpi4py import MPI

    from numba_kernels import PeerError, Team
    from numba_kernels.team.failure import abort_all

    everyone = Team()
    color, pair = everyone.rank % 2, MPI.COMM_WORLD.Split(everyone.rank % 2)
    part, other = everyone.split(color), MPI.COMM_WORLD.rank ^ 1
    words, unused = MPI.COMM_WORLD.Dup(), pair.Dup()

    def makes_teams():
        for made in (part.split(0), part.split(part.rank), Team(pair), Team(MPI.COMM_SELF)):
            assert made.allreduce(np.ones(5))[0] == made.size

    def fails(why, wait):
        """As in training: a rank that fails, or hears of it, tells all of its teams."""
        with pytest.raises((ValueError, PeerError), match=why) as caught:
            if part.rank == 1:
                raise ValueError(why)
            wait()
        abort_all(caught.value)
        return caught.value

    for turn in range(2):
        if color:
            fails(f"turn {turn}", part.barrier)
            words.send("failed", other)
            part.recover(120)
            makes_teams()
            words.send("recovered", other)
        else:
            assert words.recv(source=other) == "failed"
            makes_teams()
            assert words.recv(source=other) == "recovered"
    if color:  # now a rank fails where the other one of its group makes a team
        error = fails("before a team", lambda: Team(unused))
        assert part.rank == 1 or (error.rank, error.cause) == (1, 1)
        part.recover(120)
    makes_teams()
    if not color:  # a team of all ranks can't work before those that failed have recovered
        with pytest.raises(PeerError, match="ValueError"):
            Team()
        with pytest.raises(PeerError, match="ValueError"):
            everyone.barrier()
    everyone.recover(120)
    assert Team().allreduce(np.ones(5))[0] == everyone.allreduce(np.ones(5))[0] == 4
    makes_teams()


def test_groups(on_ranks):
    on_ranks(4, groups)


def a_group_ends():
    """A group ends its program; the other one goes on and makes further teams."""
    from numba_kernels import PeerError, Team
    from numba_kernels.team.world import world_of

    everyone = Team()
    part = everyone.split(everyone.rank % 2)
    if everyone.rank % 2:
        return
    for team in (everyone, world_of(everyone.comm)):
        while len(team.letters.ended) < 2:
            team.letters.collect()
    for _ in range(3):
        part = part.split(0)
    part.barrier()
    with pytest.raises(PeerError, match=r"rank [13] failed: it left the team"):
        everyone.barrier()
    print("went on", flush=True)


def test_a_group_ends(on_ranks):
    assert on_ranks(4, a_group_ends, fresh=True).count("went on") == 2


# Stalls


STOPPED = r"""
import os, sys, time
import numpy as np
from numba_kernels import Team
team = Team()
x = team.empty(100_000)
total = 0.0
for step in range(int(sys.argv[1])):
    x[:] = team.rank + step
    total += float(team.allreduce(x)[0])
    if step == 20:
        sys.stdout.write(f"pid {team.rank} {os.getpid()}\n")
        sys.stdout.flush()
    time.sleep(0.01)
sys.stdout.write(f"total {total}\n")
"""


def stop_a_rank(ranks, shared, stall, steps, seconds=None):
    """Run STOPPED and stop its last rank for a while; returns the reports and the pids.

    seconds: how long it is stopped; None: until a report that all others wait has come twice.
        (Other reports may come before it, while the others have not come to wait either.)
    """
    from numba_kernels import launch

    env = launch.rank_environment(
        ranks, {"NUMBA_KERNELS_WINDOW": shared, "NUMBA_KERNELS_STALL": str(stall)}
    )
    command = [launch.find_mpiexec(), "-n", str(ranks), sys.executable, "-c", STOPPED, str(steps)]
    process = subprocess.Popen(
        launch.guarded(command, os.getpid()), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=os.environ | env,
    )  # fmt: skip
    try:
        pids = {}
        while len(pids) < ranks:
            _, rank, pid = process.stdout.readline().split()
            pids[int(rank)] = int(pid)
        stopped = re.compile(all_wait_for_the_last(ranks, pids))
        os.kill(pids[ranks - 1], signal.SIGSTOP)
        said = []
        if seconds is not None:
            time.sleep(seconds)
        while seconds is None and len(stopped.findall("".join(said))) < 2:
            said.append(process.stderr.readline())
            assert said[-1], "".join(said)
        os.kill(pids[ranks - 1], signal.SIGCONT)
        out, err = process.communicate(timeout=600)
    finally:
        process.terminate()
        process.wait(100)
    assert process.returncode == 0, err
    totals = [line for line in out.splitlines() if line.startswith("total")]
    expected = sum(ranks * (ranks - 1) / 2 + ranks * step for step in range(steps))
    assert totals == [f"total {expected}"] * ranks
    return "".join(said) + err, pids


def all_wait_for_the_last(ranks, pids):
    """A pattern for the report of STOPPED, with the seconds of waiting."""
    last = ranks - 1
    waiting = {2: "rank 0 has", 3: "ranks 0 and 1 have", 4: "ranks 0, 1 and 2 have"}[ranks]
    where = rf"for rank {last} \(process {pids[last]} is stopped by a signal\)"
    call = r"allreduce\(float32\[100000\], op='sum'"
    return rf"stall: {waiting} waited (\d+) s in {call}.*{where}"


@PLACES
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_rank_is_stopped(ranks, shared):
    said, pids = stop_a_rank(ranks, shared, stall=1, steps=60)
    # One rank reports it, after 1 s and after 2 s, say; if others did so too, seconds would repeat.
    first, second = map(int, re.findall(all_wait_for_the_last(ranks, pids), said))
    assert first < second, said
    assert said.count(f"stall: rank {ranks - 1} came after ") == 1, said


def no_such_time():
    with pytest.raises(ValueError, match=r"NUMBA_KERNELS_STALL must .* above 0, got 'soon'"):
        from numba_kernels import Team  # noqa: F401


def test_seconds_until_a_stall_is_reported(on_ranks):
    on_ranks(1, no_such_time, env={"NUMBA_KERNELS_STALL": "soon"})


def a_process_ends():
    """Other ranks notice that a process of this machine has ended, without a letter from it."""
    from numba_kernels import PeerError, Team

    team = Team()
    team.barrier()
    if team.rank == 0:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        time.sleep(0.5)  # now a zombie, whose status nobody has read
        team.processes[1] = ended.pid
        with pytest.raises(PeerError, match=f"rank 1 failed: its process {ended.pid} has ended"):
            team.barrier()
        ended.wait()
    else:
        team.settle(120)


def test_a_process_ends(on_ranks):
    on_ranks(2, a_process_ends)
