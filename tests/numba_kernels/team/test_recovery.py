"""Failed teams recover: by `recover()`, or by themselves in a notebook's next cell."""

import os
import resource
import signal
import threading
import time

import clock
import numpy as np
import pytest
from places import places, ranks_at

PLACES = places("window", "messages")


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


@pytest.mark.thorough
@ranks_at("2-messages", "3-window")
def test_many_failures(on_ranks, ranks, env):
    """`make soak` has 120."""
    on_ranks(ranks, many_times, 24, env=env, fresh=True)


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


@pytest.mark.thorough(but="3")
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


@pytest.mark.thorough(but="window")
@PLACES
def test_a_rank_that_does_not_come(on_ranks, env):
    on_ranks(3, missing, env=env)


def interrupted():
    """Ctrl-C interrupts a rank's recovery; its second try succeeds, and the others need none."""
    from mpi4py import MPI

    from numba_kernels import Team

    team = Team()
    MPI.COMM_WORLD.Barrier()  # all ranks have made it
    team.abort(ValueError("everywhere"))
    team.settle()
    if team.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            team.recover(120)
        MPI.COMM_WORLD.send("interrupted", 2)
    elif team.rank == 2:
        MPI.COMM_WORLD.recv(source=0)  # so that the others wait
    team.recover(120)
    assert (team.allreduce(np.ones(5)) == 3).all()


@PLACES
def test_interrupt_while_it_recovers(on_ranks, env):
    on_ranks(3, interrupted, env=env)


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


@pytest.mark.thorough(but="3-window")
@ranks_at("3-window", "2-messages", "4-messages")
def test_cells(on_ranks, ranks, env):
    on_ranks(ranks, cells, env=env)
