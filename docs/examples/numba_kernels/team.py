"""Examples of numba_kernels.team."""

# %% [4 ranks] Messages that travel while ranks compute
# shows: exchange
import numpy as np

from numba_kernels import Team
from numba_kernels.team import exchange

team = Team()
right, left = (team.rank + 1) % team.size, (team.rank - 1) % team.size
mine, theirs = np.full(2, team.rank, np.float32), np.empty(2, np.float32)
under_way = exchange.begin(team, mine, right, theirs, left)
squares = mine**2  # computes meanwhile
under_way.wait()
print("from rank", int(theirs[0]))

# %% [4 ranks] Texts
# shows: bytes
from numba_kernels import Team
from numba_kernels.team import bytes

team = Team()
text = bytes.broadcast_text(team, f"from rank {team.rank}", root=2)
found = bytes.collect(team, text.encode() * team.rank)  # on rank 0: a list
print(text, None if found is None else [len(each) for each in found])

# %% [4 ranks] After a failure
# shows: recovery, failure, mailbox, regrouping
from numba_kernels import Team
from numba_kernels.errors import TeamError
from numba_kernels.team import mailbox

team = Team()
if team.rank == 3:
    team.abort(ValueError("no data"))  # failure.py: a letter to each rank
try:
    team.barrier()
except TeamError as error:
    print(error)
team.recover()  # recovery.py; regrouping.py goes on without ranks that are lost
team.barrier()
if team.rank == 0:
    print("letters of rank 0 go to", mailbox.audience(0, team.size))

# %% All teams of a process
# shows: abort_all
from numba_kernels import Team
from numba_kernels.team import abort_all

team = Team()
abort_all(ValueError("no data"))  # as the engines of a cluster do when a cell fails
print(repr(team.failure))
team.recover()
print(team.failure)

# %% What this process does
# shows: activity, stall, waiting
from numba_kernels.team import activity, stall, waiting

print(activity.kind(), activity.wait(), activity.KINDS)
print("long waits are reported after", stall.seconds_to_report(), "s", waiting.Waiting.__name__)

# %% From where teams have their communicators and their memory
# shows: windows, world
from mpi4py import MPI

from numba_kernels.team import windows, world

print(windows.ranks_a_node(4), world.ranks_in_world(MPI.COMM_WORLD))

# %% [4 ranks] What any team offers
# shows: collectives
from numba_kernels import Team
from numba_kernels.team import collectives

team: collectives.Collectives = Team()
print(isinstance(team, collectives.Collectives), team.clock.now() <= team.clock.now())
