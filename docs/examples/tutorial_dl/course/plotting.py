"""Examples of figures that no notebook draws; for the others, its cell is the example."""

# %% Times of allreduce algorithms
# shows: allreduce_times
import numpy as np

from tutorial_dl.course import plotting

sizes = np.array([64, 4096, 2**20])
predicted = {"naive": np.array([1e-6, 2e-6, 9e-4]), "ring": np.array([3e-6, 4e-6, 5e-4])}
plotting.allreduce_times(sizes, predicted)

# %% The messages of a ring, round by round
# shows: Message, rounds
from tutorial_dl.course.plotting import Message, rounds

plan = rounds("ring", 3)
print(len(plan), "rounds;", isinstance(plan[0][0], Message), plan[0][0].part)

# %% A tree of roles
# shows: draw_layout
from tutorial_dl import Layout
from tutorial_dl.course.plotting import draw_layout

draw_layout(Layout(masters=2, workers=3))

# %% What two ranks did
# shows: spans
from tutorial_dl import timeline
from tutorial_dl.course.plotting import spans

ms = 1_000_000  # ns


def recorded(rank, gradient):  # as timeline.record keeps it
    spans = [["gradient", 0, gradient * ms], ["allreduce", gradient * ms, 40 * ms]]
    return {
        "rank": rank, "node": "a", "begin": 0, "end": 40 * ms, "spans": spans,
        "lost": 0, "others": 0, "clock": [], "wall": 0,
    }  # fmt: skip


spans(timeline.gather([recorded(0, 20), recorded(1, 28)]))

# %% A schedule of one's own, as far as it runs
# shows: schedule_so_far
from tutorial_dl.course.plotting import schedule_so_far
from tutorial_dl.model_parallel import ScheduleError, check, schedules

made = schedules.of(["F0 F1 B0 W0 B1 W1", "F0 B0 W0 W1 F1 B1"])
try:
    check(made)
except ScheduleError as error:
    print(error)
    figure = schedule_so_far(made, error)
figure

# %% Speed-ups, predicted and measured
# shows: speed_up
from tutorial_dl.course.plotting import speed_up

measured = (("serial", 1, 1.0, 1.0), ("synchronous", 2, 1.8, 1.9), ("synchronous", 4, 3.1, 3.4))
rows = [
    {"model": "dense", "strategy": name, "ranks": ranks, "speed_up": found, "predicted": p}
    for name, ranks, found, p in measured
]
speed_up(rows, 4)

# %% The files that the figures are in
# shows: allreduce, batches, curves, dimensions, elsewhere, games, kernels, matrices, messages
# shows: networks, parameter_server, pipelines, predictions, rules, search, sharding, showers
# shows: splitting
# shows: training
from tutorial_dl.course import plotting

for file, figures in plotting.FIGURES.items():
    print(f"{file}: {', '.join(figures[:3])}")
# allreduce, batches, curves, dimensions, elsewhere, games, kernels, matrices, messages, networks,
# parameter_server, pipelines, predictions, rules, search, sharding, showers, splitting, training
