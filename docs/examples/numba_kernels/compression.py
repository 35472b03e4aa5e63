"""Examples of numba_kernels.compression."""

# %% One number in four now, the others later
# shows: get, TopK, Method, State, NAMES
import numpy as np

from numba_kernels import Team, compression

print(compression.NAMES)
team = Team()
method = compression.get("top_k", ratio=0.25)  # TopK, a Method
state = method.init(4)  # its State: what is still to be sent
gradient = np.array([0.1, -3.0, 0.2, 0.3], np.float32)
print(method.allreduce(team, gradient, state), "later:", state.residual)

# %% Half precision
# shows: Cast
import numpy as np

from numba_kernels import Team
from numba_kernels.compression import Cast

method = Cast("fp16")
x = np.array([1 / 3, 1e-9], np.float32)
print(method.allreduce(Team(), x, method.init(2)))

# %% Eight bits a number, or one
# shows: Quantised
import numpy as np

from numba_kernels import Team
from numba_kernels.compression import Quantised

for method in (Quantised(8), Quantised(1)):
    x = np.array([0.1, -3.0, 0.2, 0.3], np.float32)
    state = method.init(4)
    print(method.allreduce(Team(), x, state).round(3), "later:", state.residual.round(3))

# %% A matrix as two thin factors
# shows: PowerSGD
import numpy as np

from numba_kernels import Team
from numba_kernels.compression import PowerSGD
from tutorial_dl.replica import Segment

matrix = np.outer(np.arange(1, 5), np.arange(1, 4)).astype(np.float32)  # rank 1: nothing is lost
method = PowerSGD(rank=1)
state = method.init(12, [Segment("weights", 0, (4, 3))])
print(method.allreduce(Team(), matrix.ravel().copy(), state).reshape(4, 3).round(3))

# %% [4 ranks] A mean that is longer where gradients differ
# shows: Adasum
import numpy as np

from numba_kernels import Team
from numba_kernels.compression import Adasum

team, method = Team(), Adasum()
same = np.array([1.0, 0.0], np.float32)  # the same on all ranks
own = np.zeros(4, np.float32)
own[team.rank] = 1  # another direction on each
for x in (same, own):
    method.allreduce(team, x, method.init(x.size), op="mean")
if team.rank == 0:
    print(same, own)
