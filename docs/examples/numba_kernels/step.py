"""Examples of numba_kernels.step."""

# %% [4 ranks] Four gradients, one update
# shows: Step
import numpy as np

from numba_kernels import Team
from numba_kernels.optimizers import Adam
from numba_kernels.step import Step

team = Team()
weights, gradient = team.empty(3), team.empty(3)
weights[:] = 1
step = Step(team, Adam(0.1), weights, gradient, clip_norm=1.0)
gradient[:] = team.rank  # mean over this rank's samples
loss, samples = step(loss=float(team.rank), samples=8)
print(np.round(weights, 4), "mean loss", loss, "of", samples)
