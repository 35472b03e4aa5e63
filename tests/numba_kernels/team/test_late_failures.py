"""Failures at awkward moments of a recovery: nothing hangs, and no letter is lost."""

import contextlib
import time

import numpy as np
import pytest
from interrupting import at_place, interrupt
from places import places

PLACES = places("window", "messages")


def one_rank_aborts_all():
    """The world, which failed on one rank alone, recovers with a team of all ranks."""
    from numba_kernels import PeerError, Team
    from numba_kernels.team import abort_all
    from numba_kernels.team.world import world_of

    team = Team()
    for culprits in ([1], [1, 3], [0, 1, 2, 3]):
        if team.rank in culprits:
            abort_all(ValueError(f"on {culprits}"))
        team.recover(120)
        world = world_of(team.comm)
        assert world.failure is None and not world.letters.failures
        assert Team().allreduce(np.ones(3))[0] == team.size
    # What fails in the new generation is heard.
    if team.rank == 2:
        abort_all(ValueError("again"))
    else:
        with pytest.raises(PeerError, match="again"):
            Team()
    team.recover(120)
    assert Team().allreduce(np.ones(3))[0] == team.size


def test_one_rank_aborts_all_and_all_recover(on_ranks):
    on_ranks(4, one_rank_aborts_all)


def next_failure():
    """A rank recovers, and fails again while another one is about to recover from the first."""
    from numba_kernels import PeerError, Team

    team = Team()
    if team.rank == 1:
        agree, wait = team._agree, team.wait_until

        def late():
            def both(finished):
                wait(lambda: 0 in team.letters.failures and finished())

            team.wait_until = both
            agree()

        team._agree = late
    if team.rank == 0:
        team.abort(ValueError("first"))
    team.recover(120)
    if team.rank == 1:
        assert team.letters.failures[0].text == "ValueError: second"
        del team._agree, team.wait_until
    if team.rank == 0:
        team.abort(ValueError("second"))
    else:
        with pytest.raises(PeerError, match="rank 0 failed: ValueError: second"):
            team.barrier()
    team.recover(120)
    assert team.allreduce(np.ones(3))[0] == team.size


def test_a_failure_after_it_has_recovered_is_heard_in_the_next_call(on_ranks):
    on_ranks(3, next_failure)


def interrupted_in_the_end():
    """Rank 0 is interrupted while all make a communicator, which only the others know to be made.

    Then they must not discard messages of the new one, and rank 0 those of the old one.
    """
    from numba_kernels import PeerError, Team

    team = Team()
    wait, interrupts = team.wait_until, team.rank == 0
    if team.rank == 1:
        team.abort(ValueError("first"))

    def wait_until(finished, *limits):
        if not team._duplicates or team.comm is team._duplicates[-1][0]:
            return wait(finished, *limits)
        if interrupts:
            raise KeyboardInterrupt
        while not finished():  # does not read its mailbox until it is made
            time.sleep(1e-4)

    team.wait_until = wait_until
    with pytest.raises(KeyboardInterrupt if interrupts else PeerError):
        team.recover(120)
    ((made, _),) = team._duplicates
    assert (team.comm is made, team.generation) == (not interrupts, 1)
    del team.wait_until
    team.recover(120)
    assert team.allreduce(np.ones(3))[0] == team.size


@PLACES
def test_an_interrupt_while_a_communicator_is_made(on_ranks, env):
    on_ranks(3, interrupted_in_the_end, env=env)


def interrupted_twice():
    """A second Ctrl-C while a rank tells the others of the first: they hear when its cell ends."""
    from unittest import mock

    from numba_kernels import PeerError, Team

    team = Team(deadline=60)  # so that the test fails where it would hang
    if team.rank == 1:
        again = mock.patch.object(team.letters, "settle", side_effect=KeyboardInterrupt)
        with again, pytest.raises(KeyboardInterrupt):
            team.abort(KeyboardInterrupt())
        team.abort(KeyboardInterrupt())
    else:
        with pytest.raises(PeerError, match="rank 1 failed: KeyboardInterrupt"):
            team.barrier()
    team.recover(120)
    assert team.allreduce(np.ones(3))[0] == team.size


def test_an_interrupt_while_others_are_told(on_ranks):
    on_ranks(3, interrupted_twice)


def at_every_place():
    """A letter that arrives is filed, wherever in `collect` a signal is handled."""
    from mpi4py import MPI

    from numba_kernels.team import mailbox

    box = mailbox.Mailbox
    functions = [box.collect, box._read, box._file_early]

    def letter_at(number, collects):
        """A letter comes, and a signal: its handler collects letters, or raises an exception."""
        mail, passed = mailbox.Mailbox(MPI.COMM_SELF.Dup()), number
        words = [mailbox.RECOVERS, 0, 0, 0, 0, 0, 0]
        envelope = np.frombuffer(np.array(words, np.int64).tobytes(), np.uint8)
        request = mail.comm.Isend([envelope, MPI.BYTE], 0, mailbox.TAG)
        while not mail.comm.Iprobe(0, mailbox.TAG):
            time.sleep(0)
        act = mail.collect if collects else interrupt
        with contextlib.suppress(KeyboardInterrupt):
            passed = at_place(number, mail.collect, functions, act)
        mail.collect()
        assert mail.recovering == {0: 0} and not mail._arrived, (collects, number)
        assert request.Test()
        mail.comm.Free()
        return passed

    for collects in (True, False):
        places = letter_at(0, collects)
        assert places > 10
        for number in range(1, places + 1):
            letter_at(number, collects)


def test_no_signal_loses_a_letter(on_ranks):
    on_ranks(1, at_every_place)


def threads():
    """A rank may fail on one thread while it waits on another one."""
    import threading

    from numba_kernels import Team
    from numba_kernels.team import abort_all

    team = Team()
    for turn in range(10):
        thread = threading.Thread(target=abort_all, args=(ValueError(f"turn {turn}"),))
        if team.rank == turn % team.size:
            thread.start()
        with pytest.raises((RuntimeError, ValueError)):
            while True:
                team.barrier()
        if thread.ident:
            thread.join()
        team.recover(120)
    assert Team().allreduce(np.ones(3))[0] == team.size


def test_a_rank_fails_on_another_thread(on_ranks):
    on_ranks(3, threads)


def used_again():
    """A communicator that some ranks began to duplicate is refused: it would make all wait."""
    from mpi4py import MPI

    from numba_kernels import PeerError, Team, TeamError
    from numba_kernels.team import abort_all

    everyone, comm = Team(), MPI.COMM_WORLD.Dup()
    if everyone.rank == 1:
        abort_all(ValueError("before it"))
    else:
        with pytest.raises(PeerError, match="before it"):
            Team(comm)
    everyone.recover(120)
    with pytest.raises(TeamError, match="a rank failed while a team was made from this") as caught:
        Team(comm)
    assert everyone.rank != 1 or isinstance(caught.value, PeerError)
    everyone.recover(120)
    other = comm.Create_group(comm.group)
    assert Team(other).allreduce(np.ones(3))[0] == Team().allreduce(np.ones(3))[0] == comm.size


def test_a_communicator_is_not_used_again(on_ranks):
    on_ranks(3, used_again)


def at_random(seed, turns):
    """Ranks fail at random moments, and all recover; every call of recover() succeeds."""
    from numba_kernels import Team, TeamError
    from numba_kernels.team import abort_all

    team = Team()
    part = team.split(team.rank % 2)
    common, own = np.random.default_rng(seed), np.random.default_rng([seed, team.rank])

    def work(who, calls):
        sizes = np.random.default_rng([seed, turn])  # the same on all ranks, whatever they missed
        for _ in range(calls):
            time.sleep(own.exponential(0.001) * (own.random() < 0.5))
            who.allreduce(np.ones(1000 * int(sizes.integers(1, 90)), "float32"))

    for turn in range(turns):
        kind = common.choice(["abort_all", "abort", "raise", "none"])
        culprits = common.choice(team.size, int(common.integers(1, 3)), replace=False)
        before, after = common.integers(0, 3, 2)
        groups, works, makes = common.random(3) < (0.3, 0.5, 0.2)
        what = f"turn {turn}: {kind} on {culprits} after {before} calls"
        try:
            work(part if groups else team, before)
            if team.rank in culprits:
                time.sleep(own.exponential(0.001))
                if kind == "raise":
                    raise ValueError(what)
                if kind != "none":
                    (team.abort if kind == "abort" else abort_all)(ValueError(what))
            work(team, after)
        except (TeamError, ValueError) as error:
            if kind != "abort":
                abort_all(error)
        time.sleep(own.exponential(0.001) * (own.random() < 0.5))
        try:
            team.recover(120)
            part.recover(120)
        except TeamError as error:
            error.add_note(what)
            raise
        if works:
            assert team.allreduce(np.ones(3))[0] == team.size, what
        if makes:
            Team().close()
            part = team.split(team.rank % 2)
    assert team.allreduce(np.ones(3))[0] == team.size


@pytest.mark.thorough(but="3-window")
@PLACES
@pytest.mark.parametrize("ranks", [3, 4])
def test_failures_at_random(on_ranks, ranks, env):
    """`make soak` has 200."""
    on_ranks(ranks, at_random, 1, 20, env=env)
