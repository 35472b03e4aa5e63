"""Examples of tutorial_dl.course."""

# %% How fast a message is, from measured times
# shows: measure
import numpy as np

from tutorial_dl import measure

sizes = np.array([8, 1024, 65536])
measure.fit(sizes, 1e-6 + 2e-9 * sizes)  # latency, seconds per byte

# %% Trips over memory
# shows: traffic
import numpy as np

from tutorial_dl import traffic


def momentum(x, g, v):
    v *= 0.9
    v -= 0.1 * g
    x += v


x, g, v = (np.ones(4) for _ in range(3))
for trip in traffic.trips(momentum, x=x, g=g, v=v):
    print(trip)

# %% [4 ranks] Reducing gradients while others are computed
# shows: overlap
import numpy as np

from tutorial_dl import Team
from tutorial_dl.course import overlap
from tutorial_dl.replica import DenseReplica

team = Team()
replicas = {way: DenseReplica((64, 16, 10)) for way in ("alone", "in turn", "overlapped")}
x, y = np.zeros((8, 64), np.float32), np.zeros(8, np.int64)
seconds = overlap.seconds(team, replicas, (x, y), rounds=2)
if team.rank == 0:
    print(sorted(seconds))

# %% Checks, formulas and figures
# shows: exercises, foundations, plotting
from tutorial_dl import exercises, foundations, plotting

exercises.check("01.degree", ...)  # an answer that is still missing
print(foundations.saturation(compute=3e-3, serve=1e-3), "workers keep one master busy")
plotting.ring_strip(4)
