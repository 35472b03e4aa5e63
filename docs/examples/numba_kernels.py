"""Examples of numba_kernels. See docs/site/examples.py for their form."""

# %% [4 ranks] A mean over ranks, in memory that they share
# shows: Team, numba_kernels.team.Team
from numba_kernels import Team

team = Team()
x = team.empty(3)  # float32, visible to all ranks of the node
x[:] = team.rank
team.allreduce(x, op="mean")  # in place
print(x)

# %% [4 ranks] The other collectives
# shows: Team
import numpy as np

from numba_kernels import Team

team = Team()
mine = np.array([team.rank], np.int64)
print("from rank 2:", team.broadcast(mine.copy(), root=2))
print("of all ranks:", team.allgather(mine).ravel())
print("its slice of a vector:", team.slice_of(1000))

# %% [4 ranks] A rank that fails does not leave the others waiting
# shows: PeerError, TeamError, errors
from numba_kernels import PeerError, Team, TeamError, errors

team = Team()
try:
    with team:  # an error in this block is told to the other ranks
        if team.rank == 1:
            raise ValueError("a bad batch")
        team.barrier()
except PeerError as error:
    print("heard:", error, "| a TeamError:", isinstance(error, TeamError))
    assert errors.PeerError is PeerError
except ValueError as error:
    print("raised:", error)
team.recover()  # all ranks, and the team works again
team.barrier()

# %% [4 ranks] Ranks that make different calls
# shows: MismatchError
import numpy as np

from numba_kernels import MismatchError, Team, TeamError

team = Team()
try:
    if team.rank == 0:
        team.barrier()
    else:
        team.allreduce(np.ones(5, np.float32))
except TeamError as error:
    print("a MismatchError:", isinstance(error, MismatchError), "|", error)
team.recover()

# %% [4 ranks] A limit for waits
# shows: DeadlineError
from numba_kernels import DeadlineError, Team, TeamError

team, impatient = Team(), Team(deadline=0.5)
try:
    if team.rank > 0:  # rank 0 does not come
        impatient.barrier()
except TeamError as error:  # a DeadlineError; or a rank has heard of another one's
    print(isinstance(error, DeadlineError) or "DeadlineError" in str(error))
team.barrier()

# %% A kernel of one's own
# shows: compiled, jit
import numpy as np

from numba_kernels import compiled  # the decorator of numba_kernels.jit.compile


@compiled
def clip(x, most):
    for i in range(x.size):
        x[i] = min(x[i], most)


values = np.arange(5.0)
clip(values, 2.5)  # compiled at its first call; without the GIL
values

# %% Cores, and threads per rank
# shows: environment
from numba_kernels import environment

print(environment.usable_cores() >= 1, environment.thread_environment(1)["OMP_NUM_THREADS"])

# %% Spans cost almost nothing while nothing records
# shows: spans
from numba_kernels import spans

with spans.span("load"):
    pass
print(spans.sink)  # nobody keeps them: see numba_kernels.trace

# %% A step that reduces gradients and updates weights in one pass
# shows: fused, step, numba_kernels.step.Step, star
import numpy as np

from numba_kernels import Team
from numba_kernels.fused import Step  # also numba_kernels.step.Step
from numba_kernels.optimizers import SGD

team = Team()
weights, gradient = team.empty(4), team.empty(4)
weights[:] = 1
update = Step(team, SGD(0.1), weights, gradient)
gradient[:] = [1, 2, 3, 4]  # the mean gradient over this rank's samples
loss, samples = update(loss=0.5, samples=32)
print(weights, loss, samples)  # with a star, a master would update: numba_kernels.star

# %% Memory that the ranks of a node share
# shows: shared
from numba_kernels import Team
from numba_kernels.shared.window import aligned

vector = aligned(1000, "float32")  # memory of this process alone, aligned as a window is
window = Team().empty(1000)
print(vector.ctypes.data % 64, window.ctypes.data % 64)

# %% What a benchmark finds out about the machine
# shows: bench
from numba_kernels import bench

sorted(bench.facts()({}, []))  # what --json writes beside its rows

# %% All at once
# shows: team, trace, compression, optimizers, allreduce, launch
from numba_kernels import allreduce, compression, launch, optimizers, team, trace

with trace.Recording() as seen:
    team.Team().barrier()
print([name for name, _, _ in seen.spans])
print(optimizers.NAMES[:3], compression.NAMES[:3], allreduce.ALGORITHMS[:3], launch.rank())
