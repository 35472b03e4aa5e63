"""Examples of tutorial_dl.model_parallel."""

# %% Schedules of a pipeline
# shows: Schedule, Action, Timetable, simulate, held, check, ScheduleError
from tutorial_dl.model_parallel import Action, ScheduleError, check, held, schedules, simulate

one = schedules.one_f_one_b(stages=2, batches=3)  # a Schedule
timetable = simulate(one)  # a Timetable
print(timetable)
print("bubble", round(timetable.bubble, 3), "held", held(one), Action.parse("F1"))
try:
    check(schedules.of(["F0 B0 W0", "B0 F0 W0"]))
except ScheduleError as error:
    print(error)

# %% A schedule drawn
# shows: draw_schedule
from tutorial_dl.model_parallel import draw_schedule, schedules

draw_schedule(schedules.zb_h1(3, 4))

# %% [4 ranks] Ranks along two axes
# shows: Grid
from tutorial_dl import Team
from tutorial_dl.model_parallel import Grid

grid = Grid(Team(), pipeline=2)
print("pipe", grid.pipe.world_ranks, "copies", grid.copies.world_ranks)

# %% Which positions each rank keeps
# shows: Positions
from tutorial_dl.model_parallel import Positions

print([Positions(8, 2).kept_by(rank).tolist() for rank in range(2)])

# %% [4 ranks] Attention over a sequence that no rank has as a whole
# shows: RingAttention
import numpy as np

from tutorial_dl import Team
from tutorial_dl.model_parallel import RingAttention

q, k, v = np.random.default_rng(0).normal(size=(3, 1, 1, 8, 4))  # samples, heads, positions, size
attention = RingAttention(Team(), length=8)
own, _ = attention.forward(*(attention.take(x) for x in (q, k, v)))
whole = attention.gather(own)
print(whole.shape, "bytes sent", attention.sent)

# %% [4 ranks] A layer cut by columns and rows
# shows: TensorReplica, split
import numpy as np

from tutorial_dl import Team
from tutorial_dl.model_parallel import TensorReplica, split
from tutorial_dl.replica import LayeredReplica
from tutorial_dl.replica.layered import mlp_layers

team, layers = Team(), mlp_layers([8, 12, 10, 5])
rules = {"layer_1": "columns", "layer_2": "rows"}
part, whole = TensorReplica(layers, team, rules), LayeredReplica(mlp_layers([8, 12, 10, 5]))
batch = np.random.default_rng(0).normal(size=(4, 8)), np.arange(4)
print("weights of", whole.parameters.size, "here:", part.parameters.size)
close = np.isclose(part.compute_gradient(batch)[0], whole.compute_gradient(batch)[0])
print("the same loss:", close, "layers of this rank:", len(split(layers, team, rules)))

# %% [4 ranks] Each rank updates its share of the weights
# shows: ZeRO
import numpy as np

from numba_kernels.optimizers import Adam
from tutorial_dl import Team
from tutorial_dl.model_parallel import ZeRO
from tutorial_dl.replica.layered import mlp_layers

team = Team()
model = ZeRO(team, mlp_layers([8, 16, 5]), Adam(0.01), stage=3)
x, y = np.random.default_rng(team.rank).normal(size=(4, 8)), np.arange(4)
loss, samples = model.step((x, y))
print(f"loss {loss:.3f} of {samples} samples, weights of all ranks: {model.weights().size}")

# %% [4 ranks] Divided models in a Trainer
# shows: PipelinedReplica, ShardedReplica, tutorial_dl.replica.Holding
from tutorial_dl import Team, Trainer, data, models
from tutorial_dl.model_parallel import Grid, PipelinedReplica, ShardedReplica
from tutorial_dl.replica import Holding, of

digits = data.digits()
team = Team()
for replica in (
    PipelinedReplica(
        of(models.mlp(digits)), Grid(team, pipeline=2), sample=digits.train.inputs[:8]
    ),
    ShardedReplica(models.mlp(digits), team, stage=3),
):
    trainer = Trainer(replica, digits, optimizer="adam", batch_size=64, progress=False)
    loss = trainer.fit(1).epochs[-1]["loss"]
    held: Holding = replica.holding  # what each rank holds
    print(f"{held.words:34} {len(held.mine):2} parts here, loss {loss:.2f}")
