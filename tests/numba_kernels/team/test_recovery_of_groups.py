"""Some ranks fail and recover, or end, while the others go on with teams of their own."""

import numpy as np
import pytest


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


@pytest.mark.thorough
def test_a_group_ends(on_ranks):
    assert on_ranks(4, a_group_ends, fresh=True).count("went on") == 2
