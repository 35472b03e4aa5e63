"""Examples of numba_kernels.allreduce."""

# %% [4 ranks] Every algorithm gives the same sum
# shows: allreduce, ALGORITHMS, MESSAGES, dispatch, naive, tree, ring, recursive_doubling
# shows: rabenseifner, mpi, shared_memory, two_level, messages
import numpy as np

from numba_kernels import Team
from numba_kernels.allreduce import ALGORITHMS, MESSAGES, allreduce

team = Team()
for algorithm in ALGORITHMS:
    x = np.full(4, team.rank, np.float32)
    allreduce(team, x, op="sum", algorithm=algorithm)
    way = "messages" if algorithm in MESSAGES else "chosen in dispatch"
    if team.rank == 0:
        print(f"{algorithm:20} {x}  {way}")
# naive, tree, ring, recursive_doubling, rabenseifner, mpi; shared_memory, two_level

# %% [4 ranks] Two nodes of two ranks
# shows: two_level, leaders, pairwise, learning, gather
import os

import numpy as np

os.environ["NUMBA_KERNELS_NODE"] = "2"  # every two ranks count as a node
from numba_kernels import Team

team = Team()
short = team.allreduce(np.full(8, 1.0, np.float32))  # leaders exchange one message
long = team.allreduce(np.full(100_000, 1.0, np.float32))  # learning the link; then pairwise
parts = team.allgather(np.array([team.rank]))  # gather
if team.rank == 0:
    print(
        "nodes:", team.nodes, "sums:", short[0], long[-1], "two_level learned:", team.machine.nodes
    )
    print(np.ravel(parts))
del os.environ["NUMBA_KERNELS_NODE"]

# %% [4 ranks] Three ways within a node
# shows: short, staged, shared_memory
import numpy as np

from numba_kernels import Team

team = Team()
little = team.allreduce(np.ones(8, np.float32))  # short.py: one barrier
window = team.empty(100_000)  # shared_memory.py: in place
window[:] = 1
team.allreduce(window)
elsewhere = team.allreduce(np.ones(100_000, np.float32))  # staged.py: in pieces
if team.rank == 0:
    print(little[0], window[-1], elsewhere[-1])

# %% Which messages the ring sends, and the steps of one of its ranks
# shows: schedules, ring, steps, kernel
from numba_kernels.allreduce import kernel, ring, schedules

for step in ring.steps(0, 3):  # steps.Step
    print(step)
print(kernel.table(ring.steps, 0, 3, 96)[:, [kernel.FIRST, kernel.LAST]].tolist())  # elements sent
for number, messages in enumerate(schedules.rounds("ring", 3)):
    print(number, [(m.source, m.target, m.first, "+" if m.adds else "=") for m in messages])

# %% Predicted seconds
# shows: costs, machine, measure, learning
import numpy as np

from numba_kernels.allreduce import costs, learning, machine, measure

slow = machine.straight(alpha=1e-4, beta=1e-9, gamma=1e-10)  # 100 us per message, 1 GB/s
for name in ("naive", "ring", "recursive_doubling"):
    print(f"{name:20} {costs.predict(name, 4e6, 64, slow) * 1e3:8.1f} ms")
sizes = np.array(measure.SIZES)  # costs.measure(team) times messages of these sizes
print(measure.fit(2e-6 + 1e-9 * sizes))  # latency, seconds per byte
print(learning.rising([1, 2, 3], [1.0, 0.9, 2.0]).seconds)  # a curve that never falls

# %% The code of a call, by which ranks notice that their calls differ
# shows: calls
import numpy as np

from numba_kernels.allreduce import calls

call = calls.encode("allreduce", np.dtype("float32"), "sum", algorithm="ring")
print(calls.describe(call, 1000), calls.tag(call, 1000, 0))

# %% How a vector is divided, and its parts are added
# shows: elementwise, fold
import numpy as np

from numba_kernels.allreduce import elementwise, fold

print([elementwise.bounds(100, 3, i) for i in range(3)])
x = np.array([1.0, 5.0])
elementwise.combine(elementwise.op_code("max"), x, np.array([2.0, 3.0]))
print(x)
group, extra = fold.folding(6)  # of 6 ranks, 2 are folded in, so that 4 take part
print(group, [fold.rank_of(place, extra) for place in range(group)])
