"""Teams of kept ranks sleep soon where they wait, but not those of two ranks in some files."""

from asleep import AWAKE, runs

from numba_kernels import Team, launch
from numba_kernels.allreduce import messages
from numba_kernels.shared.node_array import CROWDED_SPINS, SPINS


def spins(file):
    runs(file)
    team = Team()
    few = team.node_array[SPINS] == CROWDED_SPINS
    assert few == (team.routes[0].link.words[messages.SPINS] == 0)
    print("few" if few else "many")


def test_two_ranks_of_some_files_wait_as_a_users_do(on_ranks):
    theirs = "many" if launch.usable_cores() > 1 else "few"
    for file in AWAKE:
        assert on_ranks(2, spins, file).split() == [theirs] * 2
    for ranks, file in ((2, "test_team.py"), (3, min(AWAKE))):
        assert on_ranks(ranks, spins, file).split() == ["few"] * ranks
