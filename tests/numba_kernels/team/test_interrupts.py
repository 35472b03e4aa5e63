"""A signal at every moment of what must not be parted: nothing that MPI has begun is lost."""

import contextlib
import time
from unittest import mock

import numpy as np
import pytest
from interrupting import at_place, interrupt


class Recorded:
    """A communicator that keeps the requests of some of its calls; the others are those of `of`."""

    def __init__(self, of, rank: int, size: int):
        self.of, self.rank, self.size, self.made = of, rank, size, []

    def __getattr__(self, name):
        return getattr(self.of, name)

    def Isend(self, *arguments):
        return self.kept(self.of.Isend(*arguments))

    def Irecv(self, *arguments):
        return self.kept(self.of.Irecv(*arguments))

    def kept(self, request):
        self.made.append(request)
        return request

    def lost(self, requests: list) -> list:
        """Return what is still on its way and not in `requests`."""
        return [one for one in self.made if one and not any(one is each for each in requests)]


def recovers():
    """Rank 0 is interrupted while communicators are made; the next recovery succeeds."""
    from numba_kernels import PeerError, Team
    from numba_kernels.team.waiting import Waiting

    team, number, places = Team(deadline=60), 0, 1
    while number <= places:
        if team.rank == 0:
            functions = [Waiting._set_up, Waiting.duplicate_number]
            with contextlib.suppress(KeyboardInterrupt):
                passed = at_place(number, lambda: team.recover(60), functions)
                places = passed if number == 0 else places
        else:
            with contextlib.suppress(PeerError):
                team.recover(60)
        team.recover(60)
        places = int(team.broadcast(np.array([places]))[0])
        number += 1
    assert places > 10
    assert team.allreduce(np.ones(3))[0] == team.size


def test_no_interrupt_loses_a_duplicate(on_ranks):
    on_ranks(2, recovers)


def makes_the_world():
    """Rank 0 is interrupted while the world is made, and begins again; rank 1 waits for it."""
    from mpi4py import MPI

    from numba_kernels.team import world as of
    from numba_kernels.team.waiting import Waiting

    number, places, kept = 0, 1, of._world
    while number <= places:
        of._world = None
        if MPI.COMM_WORLD.rank == 0:
            functions = [of.World.make, Waiting.duplicate_number]
            with contextlib.suppress(KeyboardInterrupt):
                passed = at_place(number, lambda: of.world_of(MPI.COMM_WORLD), functions)
                places = passed if number == 0 else places
        world = of.world_of(MPI.COMM_WORLD)
        world.ready()
        assert len(world.processes) == 1
        places = int(world.gather([places])[0, 0])
        number += 1
        if number <= places:
            free(world)
    assert places > 10

    number, places = 0, 1
    while number <= places:  # now while it learns of the ranks' processes
        free(world)
        of._world = None
        world, passed = of.world_of(MPI.COMM_WORLD), 0
        with contextlib.suppress(KeyboardInterrupt, of.TeamError):
            passed = at_place(number if world.rank == 0 else 0, world.ready, [of.processes])
        places = passed if number == 0 else places
        while world.generation == 0 < number:
            with contextlib.suppress(of.TeamError):
                world.ready()
        number += 1
        assert len(world.processes) == 1 and world.failure is None
    assert places > 2
    if kept is not None:
        free(world)
        of._world = kept


def free(world):
    world.forget()
    world.letters.comm.Free()
    world.letters = None
    world.comm.Free()


def test_the_world_is_made_in_spite_of_interrupts(on_ranks):
    on_ranks(2, makes_the_world)


def refused():
    """A group's team fails twice without a recovery; the others hear of it both times."""
    from numba_kernels import PeerError, Team, TeamError
    from numba_kernels.team.waiting import Waiting

    everyone = Team()
    comm, other = (everyone.comm.Split(everyone.rank < 2) for _ in range(2))
    waits, real = 0, Waiting.wait_until

    def wait_until(team, finished, *limits, **how):
        nonlocal waits
        waits += 1
        if waits != 2:
            return real(team, finished, *limits, **how)
        while not finished():  # the second duplicate is made on both, and rank 1 does not see it
            time.sleep(1e-4)
        if everyone.rank == 1:
            return real(team, interrupt)
        return None

    if everyone.rank < 2:
        raised = KeyboardInterrupt if comm.rank else PeerError
        with mock.patch.object(Waiting, "wait_until", wait_until), pytest.raises(raised):
            Team(comm)
        with pytest.raises(TeamError, match="a rank failed while a team was made from this"):
            Team(comm)
        waits = 1
        with (
            mock.patch.object(Waiting, "wait_until", wait_until if comm.rank else real),
            pytest.raises(raised),
        ):
            Team(other)
    everyone.recover(120)
    again = comm.Create_group(comm.group)
    assert Team(again).allreduce(np.ones(3))[0] == comm.size
    assert Team().allreduce(np.ones(3))[0] == everyone.size


def test_each_failure_to_make_a_team_is_told(on_ranks):
    on_ranks(3, refused)


def closes():
    """Ctrl-C while a team is closed; the failure that follows is told to the other teams."""
    from numba_kernels import PeerError, Team
    from numba_kernels.team import abort_all

    team, other = Team(), Team()

    class Interrupted(Recorded):
        def Free(self):
            self.of.Free()
            raise KeyboardInterrupt

    if team.rank == 0:
        team.letters.comm = Interrupted(team.letters.comm, 0, team.size)
        with pytest.raises(KeyboardInterrupt):
            team.close()
        assert not team.comm
        team.abort(ValueError("after it"))
        abort_all(ValueError("after it"))
    else:
        team.close()
        with pytest.raises(PeerError, match="after it"):
            other.barrier()
    other.recover(120)
    assert Team().allreduce(np.ones(3))[0] == other.size


def test_an_interrupt_while_a_team_is_closed(on_ranks):
    on_ranks(2, closes)


def posts():
    """A signal comes while a letter is posted: its handler posts one, or raises an exception."""
    from mpi4py import MPI

    from numba_kernels.team import mailbox

    def letter_at(number, act):
        comm = MPI.COMM_SELF.Dup()
        # Seen as rank 1 of 2, so that its letters to rank 0 come to this process.
        mail = mailbox.Mailbox(recorded := Recorded(comm, 1, 2))
        mail.post(mailbox.WAITS)
        mail.collect()
        for _ in range(2):  # large ones stay on their way until they are received
            large = np.zeros(1 << 21, np.uint8)
            mail._sent.append(recorded.Isend([large, MPI.BYTE], 0, 5))
        act = act or (lambda: mail._sent.append(recorded.Isend([large, MPI.BYTE], 0, 5)))
        passed = 0
        with contextlib.suppress(KeyboardInterrupt):
            passed = at_place(number, lambda: mail.post(mailbox.WAITS), [mailbox.Mailbox.post], act)
        assert not recorded.lost(mail._sent), number
        for request in recorded.made:
            while not request.Test():
                mail.collect()
                if comm.Iprobe(0, 5):
                    comm.Recv([np.empty(1 << 21, np.uint8), MPI.BYTE], 0, 5)
        mail.collect()
        comm.Free()
        return passed

    places = letter_at(0, None)
    assert places > 5
    for number in range(1, places + 1):
        letter_at(number, interrupt)
        letter_at(number, None)


def test_no_signal_loses_what_is_sent(on_ranks):
    on_ranks(1, posts)


def discards():
    """An interrupt while messages are discarded: each receive is kept, and each mark sent once."""
    from mpi4py import MPI

    from numba_kernels.allreduce.messages import Flush

    def message_at(number):
        comm = MPI.COMM_SELF.Dup()
        large = np.zeros(1 << 21, np.uint8)
        sent = comm.Isend([large, MPI.BYTE], 0, 5)
        recorded, passed = Recorded(comm, 1, 2), 0
        flush = Flush(recorded, [])
        with contextlib.suppress(KeyboardInterrupt):
            passed = at_place(number, flush.missing, [Flush.missing])
        assert not recorded.lost(flush._requests), number
        while flush.missing():
            time.sleep(0)
        assert sent.Test() and len(recorded.made) == 3, number  # a mark, and two receives
        comm.Free()
        return passed

    places = message_at(0)
    assert places > 10
    for number in range(1, places + 1):
        message_at(number)


def test_no_interrupt_loses_a_receive(on_ranks):
    on_ranks(1, discards)
