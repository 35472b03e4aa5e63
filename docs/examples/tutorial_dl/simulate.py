"""Examples of tutorial_dl.simulate."""

# %% Ways to cut a large model
# shows: Transformer, Job, gpus, Cut, CutCost, possible, cost, why_not
from tutorial_dl.simulate import (
    Cut,
    CutCost,
    Job,
    Transformer,
    cost,
    gpus,
    possible,
    why_not,
)

model = Transformer(layers=32, width=4096, heads=32, tokens=32_000)
job = Job(length=4096, batch=64)
machine = gpus(node=8, memory=80e9, flops=400e12, inside=450e9, between=50e9)
print(f"{model.weights / 1e9:.1f} billion weights, {len(possible(64, model, job))} cuts")
cheapest = min(possible(64, model, job), key=lambda cut: cost(cut, model, job, machine).step)
found: CutCost = cost(cheapest, model, job, machine)
print(cheapest, f"{found.bytes / 1e9:.0f} GB, {found.step:.2f} s")
print(why_not(Cut(tensor=5), model, job))

# %% Cuts of layers that were measured
# shows: LayerCost, propose
from numba_kernels.allreduce.machine import straight
from tutorial_dl.simulate import LayerCost, propose

# Seconds per call and per sample, weights, outputs; c is cut in two on two ranks.
layers = [LayerCost("a", 1e-3, 1e-4, 1000, 64), LayerCost("c", 0, 2e-4, 9000, 10, crossing=64)]
sliced = [layers[0], LayerCost("c", 0, 1e-4, 4500, 10, summed=10, sums=1, crossing=64)]
machine = straight(alpha=1e-4, beta=1e-9, gamma=0)  # 100 us per message, 1 GB/s
for one in propose({1: layers, 2: sliced}, ranks=2, batch=32, machine=machine):
    print(f"{one.cut!s:10} {1e3 * one.step:.2f} ms, {one.bytes:,.0f} bytes per rank")

# %% A step on more ranks, predicted from one
# shows: step_seconds, speed_up, copy_bandwidth, profile
from tutorial_dl import Trainer, data, models, strategies
from tutorial_dl.simulate import copy_bandwidth, profile, speed_up, step_seconds

digits = data.digits()
trainer = Trainer(models.dense(digits), digits, strategies.Serial(), progress=False)
one = profile(trainer, ranks=(1, 2))  # seconds of a gradient and of an update
one |= {"parameters": trainer.replica.parameters.size, "cores": 2}
print(step_seconds(2, **one, bytes_per_second=copy_bandwidth()) > 0)
given = {"gradient_seconds": {1: 0.010, 2: 0.006}, "update_seconds": 0.002}
print(round(speed_up(2, **given, parameters=10**6, cores=2, bytes_per_second=1e10), 2))

# %% A program on 64 virtual ranks
# shows: on_virtual_ranks, VirtualTeam
import numpy as np

from tutorial_dl.simulate import VirtualTeam, on_virtual_ranks


def program(team: VirtualTeam) -> float:
    team.compute(0.5 if team.rank == 7 else 0.1)  # one rank is slow, and all wait for it
    return team.allreduce(np.ones(1000))[0]


ended = on_virtual_ranks(program, 64)
print(ended[0].value, round(ended[0].seconds, 3))

# %% Processes on a simulated clock
# shows: SimulatedClock, Processes
from tutorial_dl.simulate import Processes, SimulatedClock


def baker():
    yield 3.0
    world.post("bread", seconds=0.5)


def guest():
    yield "bread"
    print("after", world.clock.now())


world = Processes(SimulatedClock())
world.start(guest())
world.start(baker())
world.run()
